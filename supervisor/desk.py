"""Takes what people ask of a running fleet, by signal or control socket, to the part that does it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from supervisor import early
from supervisor.exits import ExitCode, signal_name
from supervisor.ground import Ground
from supervisor.ladder import Rung
from supervisor.parts import Parts
from supervisor.reloading import ReloadResult
from supervisor.settings import MAX_PROCS
from supervisor.signals import Ask, Signals
from supervisor.verdict import Verdict
from supervisor.workers import Worker

log = logging.getLogger(__name__)

_HANGUP_DECIDED_AFTER_S = 1.0


class Desk:
    """Signal handlers only record and wake; `obey` is called by the supervisor's step."""

    def __init__(self, ground: Ground, parts: Parts) -> None:
        self._ground = ground
        self._parts = parts
        self._signals = Signals()
        self._heard: list[tuple[int, float]] = []
        self._reload_asked_at = float("-inf")

    def install_handlers(self) -> None:
        loop = self._ground.loop
        obeyed = set(early.FLEET_SIGNALS)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            obeyed.remove(signal.SIGHUP)
        else:
            self._parts.crew.on_hangup = self._hung_up
        for signum in obeyed:
            loop.add_signal_handler(signum, self._record, signum)
        loop.add_signal_handler(signal.SIGCHLD, self._ground.wake)
        early.release_signals()

    def obey(self) -> None:
        heard, self._heard = self._heard, []
        for signum, at in heard:
            match self._signals.heard(signum, at):
                case Rung() as rung:
                    reason = f"{signal_name(signum)} received"
                    self.end(rung, Verdict(exit_code=ExitCode.DONE, reason=reason), at)
                case Ask() as ask:
                    self._do(ask)
                case None:
                    pass

    def end(self, rung: Rung, verdict: Verdict, now: float) -> None:
        self._parts.reloading.abort("the fleet stops")
        self._parts.stopping.ask(rung, verdict, now)
        self._ground.wake()

    def reload(self) -> asyncio.Future[ReloadResult]:
        self._reload_asked_at = time.monotonic()
        return self._parts.reloading.request()

    def set_quiet(self, quiet: bool) -> None:
        log.info("quiet" if quiet else "resumed")
        self._parts.crew.set_quiet(quiet)
        self._ground.wake()

    def scale(self, procs: int) -> int:
        procs = min(max(procs, 0), MAX_PROCS)
        log.info("scaling to %d workers", procs, extra={"procs": procs})
        self._parts.crew.scale(procs)
        return procs

    def stacks(self) -> None:
        for worker in self._parts.crew.workers:
            worker.ask_for_stacks()
        if self._parts.keeper is not None:
            self._parts.keeper.ask_for_stacks()

    def stop(self) -> None:
        self.end(Rung.DRAIN, Verdict(exit_code=ExitCode.DONE, reason="asked to stop"), time.monotonic())

    def _do(self, ask: Ask) -> None:
        crew = self._parts.crew
        match ask:
            case Ask.RELOAD:
                self.reload()
            case Ask.STACKS:
                self.stacks()
            case Ask.TOGGLE_QUIET:
                self.set_quiet(not crew.quiet)
            case Ask.ONE_MORE:
                self.scale(crew.wanted + 1)
            case Ask.ONE_FEWER:
                self.scale(crew.wanted - 1)

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
