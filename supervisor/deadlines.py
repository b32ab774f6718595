"""Workers that are late: to boot, to beat, to leave, or to be heard. Asks for stacks, then kills."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass

from supervisor import reaper
from supervisor.crew import Crew
from supervisor.generations import STACKS_TAKE_S
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)

_DEAF_FOR_S = 2.0


@dataclass(slots=True, kw_only=True)
class Deadlines:
    """Whoever kills for being late is here; `Crew.forgive` moves the deadlines after a suspend."""

    crew: Crew

    def check(self, now: float, *, awake_since: float) -> None:
        timeouts = self.crew.ground.settings.timeouts
        for worker in self.crew.workers:
            if worker.stage is Stage.BOOTING and now - worker.ordered_at > timeouts.boot_s:
                because = f"not ready within the boot timeout of {timeouts.boot_s:g} s"
                self._kill_after_stacks(worker, now, because)
            elif worker.kill_at is not None and now >= worker.kill_at:
                self.crew.kill(worker, "did not leave within its deadline")
            elif timeouts.stall_s is not None and now - awake_since >= timeouts.stall_s:
                self._check_beat(worker, now, timeouts.stall_s)
            self._check_hearing(worker, now)

    def next(self, now: float) -> float:
        workers = self.crew.workers
        moments = [worker.kill_at for worker in workers if worker.kill_at is not None]
        moments += [one.stacks_asked_at + STACKS_TAKE_S for one in workers if one.stacks_asked_at is not None]
        return min((moment for moment in moments if moment > now), default=now + 3600.0)

    def _check_beat(self, worker: Worker, now: float, stall_s: float) -> None:
        if worker.ready_at is None or worker.killed_because is not None:
            return
        late_s = now - self.crew.ground.board.beat_until(worker.cell)
        extra = {"slot": worker.slot, "worker_pid": worker.pid}
        if late_s > 0:
            if worker.stacks_asked_at is None:
                blocked_s = late_s + stall_s
                text = "worker %d stalled: its event loop was blocked for %.1f s"
                log.error(text, worker.slot, blocked_s, extra=extra)
            because = f"stalled: its event loop was blocked for more than {stall_s:g} s"
            if self._kill_after_stacks(worker, now, because):
                self.crew.ledger.count("stalls")
        elif worker.stacks_asked_at is not None:
            log.warning("worker %d moves again", worker.slot, extra=extra)
            worker.stacks_asked_at = None

    def _kill_after_stacks(self, worker: Worker, now: float, because: str) -> bool:
        """True when it is killed, which is not before it had a moment to write them."""
        if worker.stacks_asked_at is None:
            worker.stacks_asked_at = now
            worker.ask_for_stacks()
        elif now - worker.stacks_asked_at >= STACKS_TAKE_S:
            self.crew.kill(worker, because)
            return True
        return False

    def _check_hearing(self, worker: Worker, now: float) -> None:
        """Alive, but its end of the link is closed (the application closed all descriptors?)."""
        if not worker.channel.at_eof or worker.pid is None:
            return
        if worker.deaf_since is None:
            worker.deaf_since = now
        elif now - worker.deaf_since <= _DEAF_FOR_S:
            return
        elif reaper.is_zombie(worker.pid):
            self.crew.generations.give_up_on(worker.zygote, "does not reap")
        elif worker.kill_at is None:
            log.error("worker %d closed its link, replacing it", worker.slot, extra={"slot": worker.slot})
            kill_at = now + self.crew.ground.settings.timeouts.drain_s
            worker.drain(deadline_s=None, reason="closed its link", kill_at=kill_at)
            worker.signal(signal.SIGTERM)
