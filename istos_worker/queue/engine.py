"""Turns of the owner: everything that waits is applied, written in one batch, and only then answered
(ARCHITECTURE.md, decision 2). Knows the clock and the medium; not rules.

A turn is applied only when the one before it is durable and answered. So what the callers of a turn are told is what
the medium holds, and a failed batch concerns exactly one turn: its callers are told so, the state is thrown away and
read back, and until that works everyone who asks is told the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence

from istos_worker.errors import IstosError, StorageUnavailableError
from istos_worker.queue.collector import SparedCollector
from istos_worker.queue.early import EarlyStarts
from istos_worker.queue.operation import Operation, is_parked, outlives_failure, tell_failure
from istos_worker.queue.outage import MediumOutage
from istos_worker.queue.records import Effects, HandedOut, Instant, QueueSettings
from istos_worker.queue.state import QueueState
from istos_worker.storage.protocol import QueueMedium, Storage, WriteBatch

log = logging.getLogger(__name__)

PROBE_NOTE = "probe"
HOLD_S = 0.005
"""How long a turn that nobody waits for may stay unwritten, so that the next one's sync serves it too."""
MAX_TURN = 1000
"""Operations of one turn: more would keep their answers, and everyone else, waiting."""

Clock = Callable[[], Instant]


def system_clock() -> Instant:
    return Instant(time.time(), time.monotonic())


class Engine:
    """Drives one QueueState. Everything runs in the loop that called `load`."""

    def __init__(self, name: str, storage: Storage, settings: QueueSettings, clock: Clock) -> None:
        self.name = name
        self.settings = settings
        self.on_effects: Callable[[Effects], None] | None = None
        self.on_reloaded: Callable[[], None] | None = None
        self.down_reason: StorageUnavailableError | None = None
        """Why nothing can be done at the moment."""
        self._storage = storage
        self._clock = clock
        self._state = QueueState(settings)
        self._medium: QueueMedium | None = None
        self._skips_commits = False
        self._commit_now: Callable[[WriteBatch], bool] = _not_now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Operation] = []
        self._held: list[Operation] = []
        """Applied, but not written: nobody is to be answered for them yet."""
        self._held_until = 0.0
        self._is_called = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._busy: asyncio.Task[None] | None = None
        self._is_closed = False
        self._outage = MediumOutage(name)
        self._collector = SparedCollector()
        self._early = EarlyStarts()

    @property
    def state(self) -> QueueState:
        return self._state

    @property
    def is_loaded(self) -> bool:
        return self._medium is not None

    @property
    def is_durable(self) -> bool:
        return self._medium is not None and self._medium.is_durable

    def configure(self, settings: QueueSettings) -> None:
        self.settings = settings
        self._state.configure(settings)

    # starting and stopping

    async def load(self) -> None:
        """Opens the medium and reads the queue. Raises StorageUnavailableError. Idempotent."""
        if self._medium is not None:
            return
        self._loop = asyncio.get_running_loop()
        medium = await self._storage.open_queue(self.name)
        try:
            self._state = await self._read(medium)
        except BaseException:
            await medium.aclose()
            raise
        self._medium = medium
        self._skips_commits = bool(getattr(medium, "may_skip_commits", False))
        self._commit_now = getattr(medium, "commit_now", _not_now)
        self._is_closed = False
        self._call_turn()

    async def _read(self, medium: QueueMedium) -> QueueState:
        state = QueueState(self.settings)
        state.load_notes(await medium.notes(), self._clock())
        count = 0
        self._collector.begin_loading()
        try:
            async for rows in medium.rows():
                state.load_rows(rows, self._clock())
                count += len(rows)
                await asyncio.sleep(0)  # other queues, and those who are to hear that this one is down
        finally:
            self._collector.end_loading(count)
        state.loaded(self._clock())
        return state

    async def aclose(self) -> None:
        """Writes and answers what waits, then lets go of the medium. Idempotent."""
        if self._medium is None or self._is_closed:
            return
        while self.down_reason is None and (self._waiting or self._held or self._busy is not None):
            self._held_until = 0.0
            self._turn()
            if self._busy is not None:
                await asyncio.wait([self._busy])
        self._is_closed = True
        if self._busy is not None:
            self._busy.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._busy
            self._busy = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_up(StorageUnavailableError(f"queue {self.name}: its owner has stopped"))
        medium, self._medium = self._medium, None
        await medium.aclose()

    # turns

    def submit(self, operation: Operation) -> None:
        """From the loop: the operation runs in the next turn."""
        if self._is_closed or (self.down_reason is not None and not outlives_failure(operation)):
            operation.failed(self._why_down())
            return
        self._waiting.append(operation)
        if not self._is_called and self._busy is None:
            self._call_turn()

    def _call_turn(self) -> None:
        if self._loop is not None and not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_called = False
        if self._busy is not None or self._medium is None or self._is_closed:
            return  # whoever is busy takes the next turn
        operations, self._waiting = self._waiting[:MAX_TURN], self._waiting[MAX_TURN:]
        applied = self._held + self._apply(operations, self._clock())
        if self._may_be_held(applied):
            self._set_timer()
            return
        self._held = []
        self._hand_out(self._early.take(self._state, applied))
        try:
            effects = self._state.take_effects(with_writes=not self._skips_commits)
            is_written = not effects.writes or self._commit_now(effects.writes)
        except Exception as failure:
            # Of the medium; or a bug of ours, and what the state holds cannot be written.
            self._busy = asyncio.ensure_future(self._start_over(self._medium, applied, failure))
            return
        if not is_written:
            self._busy = asyncio.ensure_future(self._commit(self._medium, applied, effects))
            return
        if effects.writes:
            self._outage.over()
        self._answer(applied, effects)
        if self._waiting:
            self._call_turn()
        else:
            self._set_timer()

    def _may_be_held(self, applied: list[Operation]) -> bool:
        """True for outcomes whose worker waits for its next jobs, and not for this: their sync is saved when what
        brings those jobs comes within a moment."""
        if self._loop is None or self._skips_commits or not applied or self._state.is_somebody_told():
            return False
        if not all(is_parked(operation) for operation in applied):
            return False
        now = self._loop.time()
        if not self._held:
            self._held_until = now + HOLD_S
        elif now >= self._held_until:
            return False
        self._held = applied
        return True

    def _apply(self, operations: Sequence[Operation], now: Instant) -> list[Operation]:
        state = self._state
        applied = []
        for operation in operations:
            try:
                operation.apply(state, now)
            except IstosError as refused:
                tell_failure(operation, refused)
            except Exception:
                log.exception("queue %s: an operation failed", self.name)
                tell_failure(
                    operation, IstosError("the owner failed on this request; its log has the reason")
                )
            else:
                applied.append(operation)
        state.tick(now)
        return applied

    async def _commit(self, medium: QueueMedium, applied: Sequence[Operation], effects: Effects) -> None:
        try:
            await medium.commit(effects.writes)
        except Exception as failure:
            await self._recover(medium, applied, self._outage.in_words(failure))
        else:
            self._outage.over()
            self._answer(applied, effects)
        self._go_on()

    async def _start_over(
        self, medium: QueueMedium, applied: Sequence[Operation], failure: Exception
    ) -> None:
        await self._recover(medium, applied, self._outage.in_words(failure))
        self._go_on()

    def _go_on(self) -> None:
        self._busy = None
        if self._waiting:
            self._turn()
        else:
            self._set_timer()

    def _answer(self, applied: Sequence[Operation], effects: Effects) -> None:
        self._collector.holds(sum(self._state.counts))
        for operation in applied:
            if is_parked(operation):
                self._carefully(operation.done)
        self._hand_out(effects.handed_out)  # before the replies: a start waits for it
        for waiter, answer in effects.answers:
            self._carefully(waiter.deliver, answer)
        for operation in applied:
            if not is_parked(operation):
                self._carefully(operation.done)
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        if self.on_effects is None or not (effects.notify or effects.orders or effects.outgoing):
            return
        try:
            self.on_effects(effects)
        except Exception:
            log.exception("queue %s: effects could not be carried out", self.name)

    def _hand_out(self, handed_out: Sequence[HandedOut]) -> None:
        for waiter, deliveries in handed_out:
            self._carefully(waiter.deliver, deliveries)

    def _carefully(self, answer: Callable[..., None], *words: object) -> None:
        try:
            answer(*words)
        except Exception:
            log.exception("queue %s: an answer could not be given", self.name)

    # time

    def _set_timer(self) -> None:
        due = self._state.due_at
        if self._loop is None or (due == math.inf and not self._held):
            return
        at = self._loop.time() + max(0.0, due - self._clock().mono)
        if self._held:
            at = min(at, self._held_until)
        if self._timer is not None:
            if self._timer_at <= at:
                return  # it fires early, finds nothing due, and sets itself anew
            self._timer.cancel()
        self._timer_at = at  # not all of uvloop's handles know theirs
        self._timer = self._loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._turn()

    # when the medium fails

    async def _recover(
        self, medium: QueueMedium, applied: Sequence[Operation], failure: StorageUnavailableError
    ) -> None:
        """Nothing of this turn was kept. Tells everyone so, and reads back what is, however long it takes."""
        self._medium_fails(failure)
        for operation in applied:
            tell_failure(operation, failure)
        self._give_up(failure)
        self._carry_out(self._early.take_back())
        alive = self._state.alive_workers()
        while True:
            await asyncio.sleep(self._outage.next_pause_s())
            try:
                # A full disk can be read: without a write, the queue would come and go.
                await medium.commit(WriteBatch(notes={PROBE_NOTE: b"1"}))
                state = await self._read(medium)
                break
            except Exception as still:
                self._medium_fails(self._outage.in_words(still))
        for worker in alive:
            state.worker_up(worker, self._clock())
        self._state = state
        self.down_reason = None
        self._call_turn()  # what came of reading it has effects of its own
        if self.on_reloaded is not None:
            self.on_reloaded()

    def _medium_fails(self, failure: StorageUnavailableError) -> None:
        self.down_reason = failure
        self._outage.note(failure)

    def _give_up(self, failure: StorageUnavailableError) -> None:
        """Lets go of everyone who waits, parked or not yet heard."""
        waiting, self._waiting = self._waiting, []
        for operation in waiting:
            if outlives_failure(operation) and not self._is_closed:
                self._waiting.append(operation)
            else:
                tell_failure(operation, failure)
        for waiter in self._state.surrender():
            self._carefully(waiter.failed, failure)

    def _why_down(self) -> StorageUnavailableError:
        if self.down_reason is not None:
            return self.down_reason
        return StorageUnavailableError(f"queue {self.name}: its owner has stopped")


def _not_now(_batch: WriteBatch) -> bool:
    return False
