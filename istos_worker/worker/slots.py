"""The slots of one worker: starts deliveries, knows what runs, stops it. Knows no owner.

A task per delivery costs 3 us and gives it a context, a cancellation and a `current_task` of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

from istos_worker.worker import running
from istos_worker.worker.delivery import Delivery, Stop
from istos_worker.worker.outcomes import Forgotten, GaveUp, Outcome, Released
from istos_worker.worker.prefetch import Prefetch
from istos_worker.worker.runner import Call, Runner
from istos_worker.worker.settings import WorkerHooks
from istos_worker.worker.statistics import Statistics
from istos_worker.worker.suspects import RETURN_S
from istos_worker.worker.threads import SlotThreads

log = logging.getLogger(__name__)
_STUBBORN_S = 5.0
_YOUNG_S = 0.05
_LATE_S = 0.02


class Slots:
    def __init__(
        self,
        *,
        runner: Runner,
        threads: SlotThreads,
        prefetch: Prefetch,
        statistics: Statistics,
        hooks: WorkerHooks,
        on_outcome: Callable[[Delivery, Outcome], None],
    ) -> None:
        self._runner = runner
        self._threads = threads
        self._prefetch = prefetch
        self._statistics = statistics
        self._hooks = hooks
        self._tell = on_outcome
        self._loop = asyncio.get_running_loop()
        self._base = contextvars.copy_context()
        self._waiting: deque[tuple[Delivery, Call]] = deque()
        self._running: dict[Delivery, None] = {}
        self._abandoned: set[Delivery] = set()
        self._is_closed = False
        self._change_planned = False
        self._overdue_check: asyncio.TimerHandle | None = None

    @property
    def running(self) -> Iterable[Delivery]:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def _lost(self) -> int:
        return max(len(self._abandoned), self._threads.stuck)

    @property
    def free(self) -> int:
        return max(self._statistics.slots - self._lost - len(self._running), 0)

    def wanted(self) -> int:
        """How many jobs to claim now."""
        ahead = self._prefetch.ahead(self._usable())
        return max(self.free + ahead - len(self._waiting), 0)

    def is_fed(self) -> bool:
        """True while the slots have claimed jobs enough not to need new ones yet."""
        return len(self._waiting) > self._prefetch.ahead(self._usable()) // 2

    def _usable(self) -> int:
        """Slots that are free, or will be soon as far as one can tell."""
        free = self.free
        recent = time.monotonic() - _YOUNG_S
        return free + sum(1 for delivery in self._running if delivery.started_at > recent)

    def offer(self, deliveries: Iterable[Delivery]) -> None:
        """Takes what a claim brought."""
        prepare, prefetch = self._runner.prepare, self._prefetch
        for delivery in deliveries:
            prefetch.is_among_crashed = delivery.crashes > 0
            if self._is_closed:
                delivery.stop = Stop.HAND_BACK
                self._on_outcome(delivery, self._runner.stopped(delivery, None))
                continue
            if not self._hooks.suspects.admit(delivery):
                self._on_outcome(delivery, Released(RETURN_S))
                continue
            prepared = prepare(delivery)
            if isinstance(prepared, Call):
                self._waiting.append((delivery, prepared))
            else:
                self._on_outcome(delivery, prepared)
        self.fill()
        if self._waiting:
            self._plan_overdue_check()

    def _on_outcome(self, delivery: Delivery, outcome: Outcome) -> None:
        self._hooks.suspects.left(delivery)
        self._tell(delivery, outcome)

    def fill(self) -> None:
        """Starts what the free slots can take."""
        waiting = self._waiting
        room = self.free
        if waiting and room:
            self._plan_change()
            while waiting and room:
                room -= 1
                self._start(*waiting.popleft())
        self._statistics.prefetched = len(waiting)

    def _start(self, delivery: Delivery, call: Call) -> None:
        self._running[delivery] = None
        self._statistics.busy = len(self._running)
        delivery.started_at = time.monotonic()
        context = self._base.copy()
        context.run(running.enter, delivery)
        delivery.task = self._loop.create_task(self._run(delivery, call), context=context)
        limit_s = self._runner.time_limit(call.handler)
        if limit_s is not None:
            delivery.limit(limit_s)
            delivery.timer = self._loop.call_later(limit_s, self.stop, delivery, Stop.TIME_LIMIT)

    async def _run(self, delivery: Delivery, call: Call) -> None:
        self._finish(delivery, await self._runner.run(delivery, call))

    def _finish(self, delivery: Delivery, outcome: Outcome) -> None:
        self._abandoned.discard(delivery)
        if delivery.finished:  # it was given up before it ended
            self.fill()
            return
        delivery.finished = True
        delivery.task = None
        if delivery.timer is not None:
            delivery.timer.cancel()
        del self._running[delivery]
        self._prefetch.ran(time.monotonic() - delivery.started_at)
        self._statistics.busy = len(self._running)
        self._plan_change()
        self._on_outcome(delivery, outcome)
        self.fill()

    def stop(self, delivery: Delivery, reason: Stop) -> None:
        """Ends a running delivery: a coroutine by cancellation, a thread by giving it up."""
        if delivery.finished or delivery.task is None:
            return
        if reason is Stop.CANCEL:
            delivery.alive().cancelled = True
            if not self._is_coroutine(delivery):
                return  # a thread sees ctx.cancelled, or runs to its end
        if delivery.stop is None or reason is Stop.HAND_BACK:
            delivery.stop = reason
        task = delivery.task
        task.cancel()
        if _is_unbegun(task):
            # Cancelled before its first step it ends without one, and would tell nobody.
            self._finish(delivery, self._runner.stopped(delivery, delivery.handler))
            return
        if delivery.timer is not None:
            delivery.timer.cancel()
        delivery.timer = self._loop.call_later(_STUBBORN_S, self._give_up, delivery)
        if not self._is_coroutine(delivery):
            self._loop.call_soon(self._report_stuck, delivery)

    @staticmethod
    def _is_coroutine(delivery: Delivery) -> bool:
        return delivery.handler is not None and delivery.handler.plan.is_async

    def _report_stuck(self, delivery: Delivery) -> None:
        # One turn later: the cancelled task has counted its thread by now.
        if self._threads.stuck and delivery.stop is Stop.TIME_LIMIT:
            self._retire(f"a thread is stuck in job {delivery.label}, past its time limit")

    def _give_up(self, delivery: Delivery) -> None:
        """A coroutine that swallowed its cancellation: its slot is lost while it goes on."""
        if delivery.finished:
            return
        self._abandoned.add(delivery)
        handler = delivery.handler
        task, delivery.task = delivery.task, None
        outcome = self._runner.stopped(delivery, handler)
        delivery.finished = True
        del self._running[delivery]
        self._statistics.busy = len(self._running)
        self._plan_change()
        self._on_outcome(delivery, outcome)
        if task is not None and delivery.stop is not Stop.HAND_BACK:
            self._retire(f"job {delivery.label} goes on although it was cancelled")

    def _retire(self, reason: str) -> None:
        log.error("this worker should be replaced: %s", reason)
        if self._hooks.retire is not None:
            self._hooks.retire(reason)

    def drain(self, deadline_s: float | None) -> None:
        """What has not started is released, what runs is told."""
        self.release_waiting()
        for delivery in self._running:
            delivery.alive().draining = True
            if deadline_s is not None:
                delivery.limit(deadline_s)

    def release_waiting(self, older_than_s: float = 0.0) -> int:
        """Hands back the claimed jobs that have waited that long without a slot. How many."""
        claimed_before = time.monotonic() - older_than_s
        released = 0
        waiting = self._waiting
        for _ in range(len(waiting)):
            delivery, call = waiting.popleft()
            if delivery.claimed_at <= claimed_before:
                released += 1
                self._on_outcome(delivery, Released())
            else:
                waiting.append((delivery, call))
        self._statistics.prefetched = len(waiting)
        return released

    def hand_back(self) -> None:
        """Everything that runs is released now: coroutines are cancelled, threads given up. What comes in later
        is released unstarted."""
        self._is_closed = True
        for delivery in list(self._running):
            self.stop(delivery, Stop.HAND_BACK)

    def give_up_all(self) -> None:
        for delivery in list(self._running):
            delivery.stop = Stop.HAND_BACK
            self._give_up(delivery)

    def cancelled(self, job_id: str, fence: int | None) -> None:
        """The owner asks for a job to be given up."""
        for delivery in self._held(job_id, fence):
            self._end(delivery, Stop.CANCEL, GaveUp())

    def lost(self, job_id: str, fence: int | None) -> None:
        """The owner has taken a job away."""
        for delivery in self._held(job_id, fence):
            log.warning("job %s is no longer this worker's: its lease ended", delivery.label)
            self._end(delivery, Stop.LOST, Forgotten())

    def _end(self, delivery: Delivery, reason: Stop, unstarted: Outcome) -> None:
        if delivery in self._running:
            self.stop(delivery, reason)
            return
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not delivery)
        self._statistics.prefetched = len(self._waiting)
        self._on_outcome(delivery, unstarted)

    def _held(self, job_id: str, fence: int | None) -> list[Delivery]:
        return [
            delivery
            for delivery in self.held()
            if delivery.job_id == job_id and (fence is None or delivery.fence in (None, fence))
        ]

    def held(self) -> list[Delivery]:
        """What runs and what waits."""
        return [*self._running, *(delivery for delivery, _ in self._waiting)]

    def _plan_overdue_check(self) -> None:
        if self._overdue_check is None:
            due = self._loop.time() + _YOUNG_S
            self._overdue_check = self._loop.call_at(due, self._release_overdue, due)

    def _release_overdue(self, due: float) -> None:
        self._overdue_check = None
        # When something has blocked the loop, the jobs waited for that, and their slots may be free right now.
        if self._loop.time() - due < _LATE_S:
            if self.release_waiting(_YOUNG_S):
                self._prefetch.overrated()
            else:
                self._prefetch.proved()
        if self._waiting:
            self._plan_overdue_check()

    def _plan_change(self) -> None:
        # The loop runs callbacks in order, so this comes before the first step of any task made after it.
        if self._hooks.on_change is not None and not self._change_planned:
            self._change_planned = True
            self._loop.call_soon(self._tell_change)

    def _tell_change(self) -> None:
        self._change_planned = False
        if self._hooks.on_change is not None:
            self._hooks.on_change()


def _is_unbegun(task: asyncio.Task[None]) -> bool:
    return inspect.getcoroutinestate(cast(Coroutine[Any, Any, None], task.get_coro())) == inspect.CORO_CREATED
