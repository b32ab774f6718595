"""The workers that live and the slots they fill. Knows births and deaths; not why slots change."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from supervisor import reaper
from supervisor.berth import Berth
from supervisor.board import CELLS
from supervisor.exits import Exit, Lost, Verdict, exit_from_status
from supervisor.generations import Generations, Zygote
from supervisor.ground import Ground
from supervisor.ledger import Ledger
from supervisor.mourning import Mourning
from supervisor.orders import Quiet, Resume
from supervisor.settings import UNREADY_LEAVES_WITHIN_S
from supervisor.spawn import nonblocking_pipe
from supervisor.stacks import StackPipe
from supervisor.wire import Channel
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)

_GROUP_SIGNAL_S = 0.3
_UNBORN_AT_MOST = 32


@dataclass(slots=True, kw_only=True)
class Crew:
    """`trusted` is the generation that fills empty slots; `wanted` how many slots there are."""

    ground: Ground
    generations: Generations
    mourning: Mourning
    ledger: Ledger
    wanted: int
    trusted: int = 1
    workers: list[Worker] = field(default_factory=list)
    quiet: bool = False
    on_hangup: Callable[[Worker], None] | None = None
    _serial: int = 0
    _free_cells: list[int] = field(default_factory=lambda: list(range(CELLS - 1, 0, -1)))

    def __post_init__(self) -> None:
        self.generations.on_message = self._zygote_says

    # -- looking ---------------------------------------------------------------------------------

    def ready(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.stage is Stage.READY]

    def staying(self, slot: int) -> list[Worker]:
        return [worker for worker in self.workers if worker.slot == slot and worker.stays]

    def generations_in_use(self) -> set[int]:
        return {worker.generation for worker in self.workers}

    def empty_slots(self) -> list[int]:
        return [
            slot for slot in range(self.wanted) if slot not in self.ledger.finished and not self.staying(slot)
        ]

    def unstaffed_slots(self) -> list[int]:
        """Slots that should have a ready worker and have none."""
        staffed = {worker.slot for worker in self.ready()}
        return [
            slot for slot in range(self.wanted) if slot not in staffed and slot not in self.ledger.finished
        ]

    def all_finished(self) -> bool:
        return self.wanted > 0 and self.ledger.finished >= set(range(self.wanted)) and not self.workers

    # -- acting ----------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """A worker of the trusted generation for every slot that has none and may have one."""
        empty = [slot for slot in self.empty_slots() if self.ledger.history(slot).not_before <= now]
        if not empty:
            return
        zygote = self.generations.loaded(self.trusted)
        if zygote is None:
            return
        # The zygote's socket holds some two hundred orders; what it has forked wakes us for the rest.
        unborn = sum(worker.pid is None for worker in self.workers)
        for slot in empty[: max(_UNBORN_AT_MOST - unborn, 0)]:
            self.spawn(slot, zygote, now=now)

    def spawn(
        self, slot: int, zygote: Zygote, *, now: float, replaces: Worker | None = None
    ) -> Worker | None:
        """A fork is ordered; None if it cannot be, which is a failed boot of the slot."""
        try:
            worker = self._order(slot, zygote)
        except OSError as error:
            log.error("worker %d not started: %s", slot, error, extra={"slot": slot})
            self.ledger.died(slot, ready_for_s=None, now=now, others_ready=bool(self.ready()))
            return None
        worker.ordered_at, worker.replaces = now, replaces
        worker.channel.attach(self.ground.loop)
        if self.quiet:
            worker.tell(Quiet())
        self.workers.append(worker)
        return worker

    def _order(self, slot: int, zygote: Zygote) -> Worker:
        """Raises OSError, and leaves nothing open."""
        if not self._free_cells:
            raise OSError(errno.EAGAIN, "too many workers are still leaving")
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            link, their_link = socket.socketpair()
            undo.enter_context(link)
            theirs.enter_context(their_link)
            stacks_fd, their_stacks_fd = nonblocking_pipe()
            theirs.callback(os.close, their_stacks_fd)
            worker = self._conceive(slot, zygote, link, stacks_fd)
            undo.callback(self._let_go, worker)
            fds = [their_link.fileno(), their_stacks_fd]
            self.generations.fork(zygote, worker.serial, self._berth(worker).to_wire(), fds)
            undo.pop_all()
        return worker

    def _conceive(self, slot: int, zygote: Zygote, link: socket.socket, stacks_fd: int) -> Worker:
        self._serial += 1
        cell = self._free_cells.pop()
        self.ground.board.clear(cell)
        worker = Worker(
            serial=self._serial,
            slot=slot,
            cell=cell,
            zygote=zygote,
            stacks=StackPipe(self.ground.loop, stacks_fd, who=f"worker {slot} gen {zygote.generation}"),
        )
        worker.channel = Channel(
            link, on_message=lambda message: self._heard(worker, message), on_eof=self.ground.wake
        )
        return worker

    def _let_go(self, worker: Worker) -> None:
        worker.channel.close()
        worker.stacks.close()
        self._free_cells.append(worker.cell)

    def retire(self, worker: Worker, reason: str) -> None:
        """It may finish what it works on, however long that takes, unless it is not ready yet."""
        if worker.stays:
            boots = worker.stage is Stage.BOOTING
            kill_at = self.ground.loop.time() + UNREADY_LEAVES_WITHIN_S if boots else None
            worker.drain(deadline_s=None, reason=reason, kill_at=kill_at)

    def kill(self, worker: Worker, because: str) -> None:
        """One that is not born yet dies with the zygote that should have forked it long ago."""
        if worker.pid is None:
            self.generations.give_up_on(worker.zygote, "does not fork")
        else:
            worker.kill(because)

    def scale(self, wanted: int) -> None:
        self.wanted = wanted
        self.ledger.finished = {slot for slot in self.ledger.finished if slot < wanted}
        for worker in self.workers:
            if worker.slot >= wanted:
                self.retire(worker, "scaled down")
        self.ground.wake()

    def set_quiet(self, quiet: bool) -> None:
        self.quiet = quiet
        for worker in self.workers:
            worker.tell(Quiet() if quiet else Resume())

    def forgive(self, gap_s: float) -> None:
        """The machine slept: no deadline ran meanwhile."""
        for worker in self.workers:
            worker.ordered_at += gap_s
            if worker.kill_at is not None:
                worker.kill_at += gap_s

    def next_fill(self, now: float) -> float:
        """When the next slot may be filled again, or have its worker replaced."""
        moments = [self.ledger.history(slot).not_before for slot in range(self.wanted)]
        return min((moment for moment in moments if moment > now), default=now + 3600.0)

    # -- hearing ---------------------------------------------------------------------------------

    def _zygote_says(self, zygote: Zygote, message: dict[str, Any]) -> None:
        match message:
            case {"t": "forked", "serial": serial, "pid": pid}:
                for worker in self._of(zygote):
                    if worker.serial == serial:
                        worker.pid = pid
            case {"t": "fork_failed", "serial": serial, "error": error}:
                for worker in [worker for worker in self._of(zygote) if worker.serial == serial]:
                    self._not_born(worker, f"fork failed: {error}")
            case {"t": "exit", "pid": pid, "status": status, "peak": peak}:
                for worker in [worker for worker in self._of(zygote) if worker.pid == pid]:
                    self.bury(worker, exit_from_status(status), reaper.peak_bytes(peak))

    def adopt_exits(self, zygote_gone: Callable[[Zygote], bool], strays: dict[int, reaper.Reaped]) -> None:
        """Workers of a dead zygote: this process reaped them, or nobody can tell how they ended."""
        for worker in [worker for worker in self.workers if zygote_gone(worker.zygote)]:
            stray = strays.pop(worker.pid, None) if worker.pid is not None else None
            if stray is not None:
                self.bury(worker, stray.exit, stray.peak_memory_bytes)
            elif worker.channel.at_eof and (worker.pid is None or not reaper.still_there(worker.pid)):
                self.bury(worker, Lost(), 0)

    def _heard(self, worker: Worker, message: dict[str, Any]) -> None:
        match message:
            case {"t": "hello", "pid": pid}:
                worker.pid = pid
            case {"t": "ready", "pid": pid}:
                worker.pid = pid
                self._became_ready(worker)
            case {"t": "retire", "reason": reason}:
                worker.retire_reason = worker.retire_reason or reason
            case {"t": "leaving", "reason": reason, "at_once": at_once}:
                self._leaves_by_signal(worker, reason, at_once=at_once)
            case {"t": "hangup"}:
                if self.on_hangup is not None:
                    self.on_hangup(worker)
            case {"t": "give_up", "text": text, "exit_code": exit_code}:
                self._gave_up(worker, text, exit_code)
            case {"t": "last_words", "text": text}:
                worker.last_words = text
            case {"t": "acknowledged", "id": id_}:
                worker.unacknowledged.pop(id_, None)
            case {"t": "tasks", "text": text}:
                extra = {"slot": worker.slot, "worker_pid": worker.pid, "tasks": text}
                log.warning("tasks of worker %d (pid %s):\n%s", worker.slot, worker.pid, text, extra=extra)
        self.ground.wake()

    def _leaves_by_signal(self, worker: Worker, reason: str, *, at_once: bool) -> None:
        """Its own ladder runs in it; here is the deadline behind it."""
        now, timeouts = self.ground.loop.time(), self.ground.settings.timeouts
        worker.leave(reason, now + (timeouts.hand_back_s if at_once else timeouts.drain_s))
        # If the signal went to the whole group, ours is on its way: no need to fork for that moment.
        self.ledger.hold(worker.slot, now + _GROUP_SIGNAL_S)

    def _gave_up(self, worker: Worker, text: str, exit_code: int) -> None:
        if worker.on_trial:
            worker.last_words = text
        else:  # told with the verdict
            self.ledger.conclude(Verdict(exit_code=exit_code, reason="a worker gave up", text=text))

    def _became_ready(self, worker: Worker) -> None:
        if worker.stage is not Stage.BOOTING:
            return
        now = self.ground.loop.time()
        worker.stage, worker.ready_at = Stage.READY, now
        self.ledger.became_ready(worker.slot)
        extra = {"slot": worker.slot, "worker_pid": worker.pid, "generation": worker.generation}
        log.info("worker %d ready after %.2f s", worker.slot, now - worker.ordered_at, extra=extra)

    # -- deaths ----------------------------------------------------------------------------------

    def bury(self, worker: Worker, exit_: Exit, peak_memory_bytes: int) -> None:
        now = self.ground.loop.time()
        worker.channel.read_to_end()
        worker.stacks.close()
        self.workers.remove(worker)
        figures = self.ground.board.read(worker.cell)
        obituary = self.mourning.bury(worker, exit_, figures, peak_memory_bytes=peak_memory_bytes, now=now)
        worker.last_words = worker.last_words or f"a worker {obituary.cause} before it was ready"
        self._let_go(worker)
        self._account(worker, obituary.expected, now)
        self.ground.wake()

    def _account(self, worker: Worker, expected: bool, now: float) -> None:
        ready_for_s = worker.ready_for_s(now)
        if worker.stage is Stage.LEAVING:
            self.ledger.left(worker.slot, ready_for_s=ready_for_s or 0.0)
        elif expected:
            self.ledger.finished.add(worker.slot)
        else:
            self.ledger.count("crashes")
            self._count_death(worker, now)

    def _count_death(self, worker: Worker, now: float) -> None:
        """Not that of a canary: a new generation that fails is no fault of the slot's."""
        if not worker.is_canary or worker.ready_at is not None:
            others = bool(self.ready())
            self.ledger.died(worker.slot, ready_for_s=worker.ready_for_s(now), now=now, others_ready=others)

    def _not_born(self, worker: Worker, why: str) -> None:
        log.error("worker %d not started: %s", worker.slot, why, extra={"slot": worker.slot})
        self.workers.remove(worker)
        self._let_go(worker)
        worker.last_words = why
        self._count_death(worker, self.ground.loop.time())

    def _berth(self, worker: Worker) -> Berth:
        settings = self.ground.settings
        return Berth(
            slot=worker.slot,
            count=self.wanted,
            generation=worker.generation,
            cell=worker.cell,
            supervisor_pid=self.ground.pid,
            name=settings.name,
            drain_s=settings.timeouts.drain_s,
            stall_s=settings.timeouts.stall_s,
            max_units=settings.recycling.draw_max_units(),
        )

    def _of(self, zygote: Zygote) -> Iterable[Worker]:
        return [worker for worker in self.workers if worker.zygote is zygote]
