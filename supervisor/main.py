"""The supervisor itself: one loop over all its parts. `run` is the way in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from supervisor import early, logs, patience, prctl, reaper
from supervisor.board import Board
from supervisor.companions import Keeper
from supervisor.crew import Crew
from supervisor.exits import ExitCode, signal_name
from supervisor.generations import Generations, Zygote
from supervisor.ground import Ground
from supervisor.hooks import Hooks, PlainHooks
from supervisor.ladder import Rung
from supervisor.picture import Picture
from supervisor.post import Post
from supervisor.recycling import Recycler
from supervisor.reloading import Reloading, ReloadResult
from supervisor.rolling import Rolling
from supervisor.services import Refused, Services
from supervisor.settings import MAX_PROCS, Settings
from supervisor.signals import Ask, StopSignals
from supervisor.stalls import Stalls
from supervisor.stopping import Stopping
from supervisor.titles import set_title, supervisor_title
from supervisor.verdict import Verdict
from supervisor.workers import Worker

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_AWAY_AT_MOST_S = 3.0
_STRAYS_KEPT_S = 5.0


def run(settings: Settings, hooks: Hooks | None = None) -> int:
    """Supervise until stopped; returns the exit code of CONTRACT.md section 2.

    The fleet's signals are left blocked: what is left for the process to do is to exit.
    """
    early.hold_signals()
    handler = logs.shield()
    try:
        return asyncio.run(_supervise(settings, hooks or PlainHooks()))
    finally:
        if handler is not None:
            handler.close()


async def _supervise(settings: Settings, hooks: Hooks) -> int:
    prctl.become_subreaper()
    board = Board.create()
    lifeline_read, lifeline_write = os.pipe()
    wake = asyncio.Event()
    ground = Ground(
        settings=settings,
        board=board,
        loop=asyncio.get_running_loop(),
        lifeline_fd=lifeline_write,
        pid=os.getpid(),
        wake=wake.set,
    )
    supervisor = Supervisor(ground, hooks, wake=wake, lifeline_fd=lifeline_read)
    try:
        return await supervisor.run()
    finally:
        os.close(lifeline_read)
        os.close(lifeline_write)
        board.close()


@dataclass(slots=True)
class _Strays:
    """Dead children whose parent we may turn out to be: a zygote's death is seen after its orphans'."""

    kept: dict[int, reaper.Reaped] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)

    def add(self, reaped: reaper.Reaped, now: float) -> None:
        self.kept[reaped.pid], self._since[reaped.pid] = reaped, now

    def forget_old(self, now: float) -> None:
        for pid in [pid for pid, since in self._since.items() if now - since > _STRAYS_KEPT_S]:
            self.kept.pop(pid, None)
            del self._since[pid]


class Supervisor:
    """Level-triggered: events only wake it; each step looks at everything and does what is due."""

    def __init__(self, ground: Ground, hooks: Hooks, *, wake: asyncio.Event, lifeline_fd: int) -> None:
        settings = ground.settings
        self._ground = ground
        self._wake = wake
        self._post = Post()
        self._generations = Generations(ground=ground, on_message=self._zygote_says)
        self._crew = Crew(
            ground=ground, generations=self._generations, hooks=hooks, post=self._post, wanted=settings.procs
        )
        self._crew.on_hangup = self._hung_up
        self._keeper = (
            Keeper(
                ground=ground,
                companion=settings.companion,
                lifeline_fd=lifeline_fd,
                conclude=self._crew.conclude,
            )
            if settings.companion is not None
            else None
        )
        self._recycler = Recycler(crew=self._crew, recycling=settings.recycling)
        self._rolling = Rolling(crew=self._crew, due=self._recycler.due)
        self._reloading = Reloading(crew=self._crew, generations=self._generations, rolling=self._rolling)
        self._stalls = Stalls(crew=self._crew, stall_s=settings.timeouts.stall_s)
        self._stopping = Stopping(crew=self._crew, generations=self._generations, keeper=self._keeper)
        self._signals = StopSignals()
        self._heard: list[tuple[int, float]] = []
        self._strays = _Strays()
        self._patience = patience.begin(time.monotonic(), patience.boottime())
        self._reload_asked_at = float("-inf")
        self._title = ""
        picture = Picture(
            crew=self._crew,
            keeper=self._keeper,
            reloading=self._reloading,
            stopping=self._stopping,
            recycler=self._recycler,
        )
        self._picture = picture
        self._services = Services(ground=ground, hooks=hooks, picture=picture.take, commands=self)

    async def run(self) -> int:
        self._install_handlers()
        try:
            async with self._services:
                return await self._until_gone()
        except Refused as refusal:
            logs.say(str(refusal))
            return refusal.exit_code

    # -- the loop --------------------------------------------------------------------------------

    async def _until_gone(self) -> int:
        self._begin()
        while True:
            self._wake.clear()
            try:
                if self._step():
                    return self._farewell()
            except Exception:
                log.exception("a step failed, will retry")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_for_s()):
                    await self._wake.wait()

    def _begin(self) -> None:
        set_title(self._ground.settings.name, "supervisor [starting]")
        try:
            self._generations.start_next(time.monotonic())
        except OSError as error:
            text = f"the zygote could not be started: {error}"
            self._crew.conclude(Verdict(exit_code=ExitCode.UNEXPECTED, reason=text, text=text))

    def _step(self) -> bool:
        """True when everything is gone."""
        now = time.monotonic()
        self._look_at_clocks(now)
        self._reap(now)
        self._obey_signals()
        if self._keeper is not None:
            self._keeper.step(now)
        self._crew.check_deadlines(now)
        self._stalls.check(now, self._patience.awake_since)
        if not self._stopping.under_way:
            self._tend(now)
        self._post.deliver_to(self._keeper if self._takes_messages() else None)
        self._post.deliver_to(next(iter(self._crew.ready()), None))
        self._conclude(now)
        self._services.tell(self._picture.state)
        self._show_title()
        return self._stopping.under_way and self._stopping.step(now)

    def _tend(self, now: float) -> None:
        """What is done only while nobody has asked to stop."""
        self._generations.check_import_time(now)
        self._check_imports()
        if self._keeper is None or self._keeper.was_ready:
            if self._crew.ever_ready or self._crew.wanted == 0:
                self._generations.ensure(self._crew.trusted, now)
            self._crew.fill(now)
        self._recycler.measure(now)
        self._reloading.step(now)
        self._rolling.step(now)
        needed = self._crew.generations_in_use() | self._reloading.needed_generations()
        self._generations.dismiss_unneeded(needed)

    def _idle_for_s(self) -> float:
        now = time.monotonic()
        moments = [self._crew.next_deadline(now), self._stalls.next_deadline(now)]
        moments.append(self._stopping.next_deadline(now))
        if self._keeper is not None:
            moments.append(self._keeper.next_deadline(now))
        return max(min(*moments, now + _LOOK_EVERY_S) - now, 0.001)

    def _look_at_clocks(self, now: float) -> None:
        self._patience = patience.look(
            self._patience, now=now, boottime=patience.boottime(), at_most_every_s=_AWAY_AT_MOST_S
        )
        slept_s = self._patience.slept_s
        if slept_s > 0:
            log.warning(
                "this process was away for %.1f s, nobody is late", slept_s, extra={"slept_s": slept_s}
            )
            self._crew.forgive(slept_s)
            self._stopping.forgive(slept_s)
            if self._keeper is not None:
                self._keeper.forgive(slept_s)

    # -- deaths ----------------------------------------------------------------------------------

    def _reap(self, now: float) -> None:
        for reaped in reaper.reap_all():
            if self._keeper is not None and self._keeper.exited(reaped.pid, reaped.exit):
                self._post.take_back(self._keeper)
            elif self._generations.exited(reaped.pid, reaped.exit) is None:
                self._strays.add(reaped, now)
        alive = self._generations.zygotes
        self._crew.adopt_exits(lambda zygote: zygote not in alive, self._strays.kept)
        self._strays.forget_old(now)

    def _zygote_says(self, zygote: Zygote, message: dict[str, Any]) -> None:
        self._crew.zygote_says(zygote, message)

    def _check_imports(self) -> None:
        """At first start a failure is the end; later (a lost zygote) there may be workers to keep."""
        failed = self._generations.take_failure(self._crew.trusted)
        if failed is None:
            return
        reason = "the application could not be imported"
        rounds = self._generations.starts(self._crew.trusted)
        if self._crew.ever_ready and (
            self._crew.workers or rounds < self._ground.settings.restarts.boot_rounds
        ):
            log.error("%s, will retry:\n%s", reason, failed)
        else:
            text = f"{failed}\n\n{reason}"
            self._crew.conclude(Verdict(exit_code=ExitCode.NO_IMPORT, reason=reason, text=text))

    # -- ends ------------------------------------------------------------------------------------

    def _conclude(self, now: float) -> None:
        verdict = self._crew.verdict
        if verdict is None and self._crew.all_finished() and not self._stopping.under_way:
            verdict = Verdict(exit_code=ExitCode.DONE, reason="all work is done")
        if verdict is not None and self._stopping.verdict is None:
            self._stop(Rung.DRAIN, verdict, now)

    def _stop(self, rung: Rung, verdict: Verdict, now: float) -> None:
        self._reloading.abort("the fleet stops")
        self._stopping.ask(rung, verdict, now)
        self._wake.set()

    def _farewell(self) -> int:
        early.hold_signals()  # closing the loop puts the defaults back: a late TERM must not kill us
        verdict = self._stopping.verdict
        assert verdict is not None
        if verdict.text is not None:
            logs.say(verdict.text)
        log.info("stopped: %s", verdict.reason, extra={"exit_code": int(verdict.exit_code)})
        return int(verdict.exit_code)

    # -- signals ---------------------------------------------------------------------------------

    def _install_handlers(self) -> None:
        loop = self._ground.loop
        for signum in early.FLEET_SIGNALS:
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue  # nohup
            loop.add_signal_handler(signum, self._record, signum)
        loop.add_signal_handler(signal.SIGCHLD, self._wake.set)
        early.release_signals()

    def _record(self, signum: int) -> None:
        self._heard.append((signum, time.monotonic()))
        self._wake.set()

    def _obey_signals(self) -> None:
        heard, self._heard = self._heard, []
        for signum, at in heard:
            match self._signals.heard(signum, at):
                case Rung() as rung:
                    reason = f"{signal_name(signum)} received"
                    self._stop(rung, Verdict(exit_code=ExitCode.DONE, reason=reason), at)
                case Ask() as ask:
                    self._do(ask)
                case None:
                    pass

    def _do(self, ask: Ask) -> None:
        match ask:
            case Ask.RELOAD:
                self.reload()
            case Ask.STACKS:
                self.stacks()
            case Ask.TOGGLE_QUIET:
                self.set_quiet(not self._crew.quiet)
            case Ask.ONE_MORE:
                self.scale(self._crew.wanted + 1)
            case Ask.ONE_FEWER:
                self.scale(self._crew.wanted - 1)

    def _hung_up(self, worker: Worker) -> None:
        """HUP to one worker alone replaces it; to the whole group it is the reload's business."""

        def decide() -> None:
            if time.monotonic() - self._reload_asked_at > 2.0:
                worker.retire_reason = "SIGHUP"
                self._wake.set()

        self._ground.loop.call_later(1.0, decide)

    # -- commands (control socket and signals) ---------------------------------------------------

    def reload(self) -> asyncio.Future[ReloadResult]:
        self._reload_asked_at = time.monotonic()
        return self._reloading.request()

    def set_quiet(self, quiet: bool) -> None:
        log.info("quiet" if quiet else "resumed")
        self._crew.set_quiet(quiet)
        self._wake.set()

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
        self._stop(Rung.DRAIN, Verdict(exit_code=ExitCode.DONE, reason="asked to stop"), time.monotonic())

    def _takes_messages(self) -> bool:
        companion = self._ground.settings.companion
        return (
            companion is not None
            and companion.takes_messages
            and self._keeper is not None
            and self._keeper.ready
        )

    def _show_title(self) -> None:
        title = supervisor_title(len(self._crew.ready()), self._crew.trusted)
        if title != self._title:
            self._title = title
            set_title(self._ground.settings.name, title)
