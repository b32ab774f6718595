"""Workers whose event loop has not moved: stacks first, then the kill. Knows beats; not causes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from supervisor.crew import Crew
from supervisor.workers import Worker

log = logging.getLogger(__name__)

_STACKS_TAKE_S = 1.0


@dataclass(slots=True, kw_only=True)
class Stalls:
    """`stall_s` None: nobody is ever stalled."""

    crew: Crew
    stall_s: float | None

    def check(self, now: float, awake_since: float) -> None:
        if self.stall_s is None or now - awake_since < self.stall_s:
            return
        for worker in self.crew.workers:
            if worker.ready_at is not None and worker.killed_because is None:
                self._check(worker, now, self.stall_s)

    def next_deadline(self, now: float) -> float:
        moments = [worker.stalled_at + _STACKS_TAKE_S for worker in self.crew.workers if worker.stalled_at]
        return min((moment for moment in moments if moment > now), default=now + 3600.0)

    def _check(self, worker: Worker, now: float, stall_s: float) -> None:
        late_s = now - self.crew.ground.board.beat_until(worker.cell)
        extra = {"slot": worker.slot, "worker_pid": worker.pid}
        if late_s <= 0:
            if worker.stalled_at is not None:
                log.warning("worker %d moves again", worker.slot, extra=extra)
                worker.stalled_at = None
        elif worker.stalled_at is None:
            worker.stalled_at = now
            log.error(
                "worker %d stalled: its event loop was blocked for %.1f s",
                worker.slot,
                late_s + stall_s,
                extra=extra,
            )
            worker.ask_for_stacks()
        elif now - worker.stalled_at >= _STACKS_TAKE_S:
            self.crew.ledger.count("stalls")
            worker.kill(f"stalled: its event loop was blocked for more than {stall_s:g} s")
