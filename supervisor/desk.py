"""Takes what people ask of a running fleet, by signal or control socket, to the part that does it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from supervisor import early
from supervisor.crew import Crew
from supervisor.exits import ExitCode, Verdict, signal_name
from supervisor.keeper import Keeper
from supervisor.ladder import Ladder, Rung, climb, fresh
from supervisor.reloading import Reloading, ReloadResult
from supervisor.settings import MAX_PROCS
from supervisor.stopping import Stopping
from supervisor.workers import Worker

log = logging.getLogger(__name__)

_HANGUP_DECIDED_AFTER_S = 1.0


class Desk:
    """Signal handlers only record and wake; `obey` is called by the supervisor's step."""

    def __init__(
        self, *, crew: Crew, keeper: Keeper | None, reloading: Reloading, stopping: Stopping
    ) -> None:
        self._ground = crew.ground
        self._crew = crew
        self._keeper = keeper
        self._reloading = reloading
        self._stopping = stopping
        self._ladder = Ladder()
        self._heard: list[tuple[int, float]] = []
        self._reload_asked_at = float("-inf")
        self.reloads_asked = 0

    def install_handlers(self) -> None:
        loop = self._ground.loop
        obeyed = set(early.FLEET_SIGNALS)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            obeyed.remove(signal.SIGHUP)
        else:
            self._crew.on_hangup = self._hung_up
        for signum in obeyed:
            loop.add_signal_handler(signum, self._record, signum)
        loop.add_signal_handler(signal.SIGCHLD, self._ground.wake)
        early.release_signals()

    def obey(self) -> None:
        heard, self._heard = self._heard, []
        for signum, at in heard:
            self._obey(signum, at)

    def end(self, rung: Rung, verdict: Verdict, now: float) -> None:
        self._reloading.abort("the fleet stops")
        self._stopping.ask(rung, verdict, now)
        self._ground.wake()

    def reload(self) -> asyncio.Future[ReloadResult]:
        self.reloads_asked += 1
        self._reload_asked_at = time.monotonic()
        asked = self._reloading.request()
        if self._stopping.under_way:
            self._reloading.abort("the fleet stops")
        return asked

    def set_quiet(self, quiet: bool) -> None:
        log.info("quiet" if quiet else "resumed")
        self._crew.set_quiet(quiet)
        self._ground.wake()

    def scale(self, procs: int) -> int:
        procs = min(max(procs, 0), MAX_PROCS)
        log.info("scaling to %d workers", procs, extra={"procs": procs})
        self._crew.scale(procs)
        return procs

    def stacks(self) -> None:
        for worker in self._crew.workers:
            worker.ask_for_stacks()
        if self._keeper is not None:
            self._keeper.ask_for_stacks()

    def stop(self) -> None:
        self.end(Rung.DRAIN, Verdict(exit_code=ExitCode.DONE, reason="asked to stop"), time.monotonic())

    def _obey(self, signum: int, at: float) -> None:
        """HUP and USR2 may come two ways, by the group and by a parent; scaling twice is two steps."""
        match signum:
            case signal.SIGHUP:
                if self._is_fresh(signum, at):
                    self.reload()
                else:
                    self.reloads_asked += 1  # an echo: systemd waits for its answer all the same
            case signal.SIGUSR2:
                if self._is_fresh(signum, at):
                    self.set_quiet(not self._crew.quiet)
            case signal.SIGUSR1:
                self.stacks()
            case signal.SIGTTIN:
                self.scale(self._crew.wanted + 1)
            case signal.SIGTTOU:
                self.scale(self._crew.wanted - 1)
            case _:
                self._ladder = climb(self._ladder, signum, at)
                reason = f"{signal_name(signum)} received"
                self.end(self._ladder.rung, Verdict(exit_code=ExitCode.DONE, reason=reason), at)

    def _is_fresh(self, signum: int, at: float) -> bool:
        self._ladder, is_fresh = fresh(self._ladder, signum, at)
        return is_fresh

    def _record(self, signum: int) -> None:
        self._heard.append((signum, time.monotonic()))
        self._ground.wake()

    def _hung_up(self, worker: Worker) -> None:
        """HUP to one worker alone replaces it; to the whole group it is the reload's business."""

        def decide() -> None:
            if time.monotonic() - self._reload_asked_at > 2 * _HANGUP_DECIDED_AFTER_S:
                worker.retire_reason = "SIGHUP"
                self._ground.wake()

        self._ground.loop.call_later(_HANGUP_DECIDED_AFTER_S, decide)
