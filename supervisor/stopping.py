"""How a fleet ends: workers, then zygotes and the companion. Only ever gets more urgent."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from supervisor.crew import Crew
from supervisor.exits import ExitCode, Verdict
from supervisor.generations import Generations
from supervisor.keeper import Keeper
from supervisor.ladder import Rung
from supervisor.settings import UNREADY_LEAVES_WITHIN_S
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)

_UNKILLABLE_S = 5.0


@dataclass(slots=True, kw_only=True)
class Stopping:
    """`rung` RUN: nobody has asked to stop."""

    crew: Crew
    generations: Generations
    keeper: Keeper | None
    rung: Rung = Rung.RUN
    verdict: Verdict | None = None
    _deadline: float = 0.0
    _workers_gone: bool = False

    @property
    def under_way(self) -> bool:
        return self.rung is not Rung.RUN

    def ask(self, rung: Rung, verdict: Verdict, now: float) -> None:
        """The first verdict stays; a lower rung than the present one changes nothing."""
        if self.verdict is None:
            self.verdict = verdict
            if verdict.exit_code != ExitCode.DONE:
                log.error("%s", verdict.text or verdict.reason, extra={"exit_code": int(verdict.exit_code)})
        if rung <= self.rung:
            return
        self.rung = rung
        if self.keeper is not None:
            self.keeper.fleet_stops = True
        timeouts = self.crew.ground.settings.timeouts
        patience_s = {Rung.DRAIN: timeouts.drain_s, Rung.HAND_BACK: timeouts.hand_back_s}.get(rung, 0.0)
        if not self._workers_gone:
            self._deadline = now + patience_s
        log.info("stopping: %s", verdict.reason, extra={"rung": rung.name.lower(), "patience_s": patience_s})
        self._dismiss_importing()
        for worker in list(self.crew.workers):
            self._instruct(worker, now)

    def forgive(self, gap_s: float) -> None:
        self._deadline += gap_s

    def step(self, now: float) -> bool:
        """True when everything is gone, or cannot be killed."""
        if not self.crew.workers and not self._workers_gone:
            self._workers_gone = True
            self._stop_the_rest(now)
        if self.rung is Rung.KILL:
            self._kill()
        return self._everything_gone() or (now > self._deadline + _UNKILLABLE_S and self._abandon())

    def next_deadline(self, now: float) -> float:
        return self._deadline if self.under_way and self._deadline > now else now + 3600.0

    def _stop_the_rest(self, now: float) -> None:
        self._deadline = now
        self.generations.dismiss_unneeded(set())
        if self.keeper is not None:
            self._deadline = now + self.keeper.companion.stop_timeout_s
            self.keeper.stop(now)

    def _kill(self) -> None:
        for worker in self.crew.workers:
            self.crew.kill(worker, "the fleet was killed")
        if self.keeper is not None and self._workers_gone:
            self.keeper.kill()

    def _everything_gone(self) -> bool:
        companion_gone = self.keeper is None or self.keeper.pid is None
        return self._workers_gone and companion_gone and not self.generations.zygotes

    def _instruct(self, worker: Worker, now: float) -> None:
        reason = self.verdict.reason if self.verdict is not None else "stopping"
        match self.rung:
            case Rung.DRAIN:
                booting = worker.stage is Stage.BOOTING
                kill_at = min(self._deadline, now + UNREADY_LEAVES_WITHIN_S) if booting else self._deadline
                worker.drain(deadline_s=self._deadline - now, reason=reason, kill_at=kill_at)
            case Rung.HAND_BACK:
                worker.hand_back(reason=reason, kill_at=self._deadline)
            case Rung.KILL | Rung.RUN:
                pass

    def _dismiss_importing(self) -> None:
        self.generations.dismiss_unneeded(
            {zygote.generation for zygote in self.generations.zygotes if zygote.is_loaded}
        )

    def _abandon(self) -> bool:
        stuck = [f"worker {worker.slot} (pid {worker.pid})" for worker in self.crew.workers]
        if self._workers_gone:
            stuck = [f"zygote (pid {zygote.pid})" for zygote in self.generations.zygotes]
            if self.keeper is not None and self.keeper.pid is not None:
                stuck.append(f"{self.keeper.companion.title} (pid {self.keeper.pid})")
        log.error("leaving what cannot be killed: %s", ", ".join(stuck))
        return True
