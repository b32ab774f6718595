"""The supervisor itself: one loop over all its parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time

from supervisor import early, patience, prctl, reaper
from supervisor.crew import Crew
from supervisor.deadlines import Deadlines
from supervisor.desk import Desk
from supervisor.exits import ExitCode, Verdict
from supervisor.generations import Generations
from supervisor.ground import Ground
from supervisor.hooks import Hooks, PlainHooks
from supervisor.keeper import Keeper
from supervisor.ladder import Rung
from supervisor.ledger import Ledger
from supervisor.mourning import Mourning
from supervisor.picture import Picture
from supervisor.post import Post
from supervisor.recycling import Recycler
from supervisor.reloading import Reloading
from supervisor.rolling import Rolling
from supervisor.services import Refused, Services
from supervisor.settings import Settings
from supervisor.spawn import Firstborn
from supervisor.stopping import Stopping
from supervisor.titles import set_title, supervisor_title

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_AWAY_AT_MOST_S = 3.0


def supervise(settings: Settings, hooks: Hooks | None, firstborn: Firstborn) -> int:
    return asyncio.run(_supervise(settings, hooks or PlainHooks(), firstborn))


async def _supervise(settings: Settings, hooks: Hooks, firstborn: Firstborn) -> int:
    prctl.become_subreaper()
    wake = asyncio.Event()
    ground = Ground(
        settings=settings,
        shared=firstborn.shared,
        loop=asyncio.get_running_loop(),
        pid=os.getpid(),
        wake=wake.set,
    )
    supervisor = Supervisor(ground, hooks, wake=wake)
    supervisor.adopt(firstborn)
    try:
        return await supervisor.run()
    finally:
        firstborn.shared.close()


class Supervisor:
    """Level-triggered: events only wake it; each step looks at everything and does what is due."""

    def __init__(self, ground: Ground, hooks: Hooks, *, wake: asyncio.Event) -> None:
        settings = ground.settings
        self._ground, self._wake = ground, wake
        self._ledger, self._post = Ledger(policy=settings.restarts), Post()
        self._generations = Generations(ground=ground)
        self._crew = Crew(
            ground=ground,
            generations=self._generations,
            mourning=Mourning(hooks=hooks, post=self._post, ledger=self._ledger, burst=settings.burst),
            ledger=self._ledger,
            wanted=settings.procs,
        )
        self._keeper = _keeper(ground, self._ledger)
        self._deadlines = Deadlines(crew=self._crew)
        self._recycler = Recycler(crew=self._crew, recycling=settings.recycling)
        self._rolling = Rolling(crew=self._crew, due=self._recycler.due)
        self._reloading = Reloading(crew=self._crew, generations=self._generations, rolling=self._rolling)
        self._stopping = Stopping(generations=self._generations, crew=self._crew, keeper=self._keeper)
        self._picture = Picture(
            crew=self._crew,
            keeper=self._keeper,
            reloading=self._reloading,
            stopping=self._stopping,
            recycler=self._recycler,
        )
        self._desk = Desk(
            crew=self._crew, keeper=self._keeper, reloading=self._reloading, stopping=self._stopping
        )
        self._services = Services(ground=ground, hooks=hooks, picture=self._picture, desk=self._desk)
        self._strays = reaper.Strays()
        self._patience = patience.begin(time.monotonic(), patience.boottime())
        self._title = ""

    def adopt(self, firstborn: Firstborn) -> None:
        """What was started before this was loaded."""
        if isinstance(firstborn.zygote, OSError):
            text = f"the zygote could not be started: {firstborn.zygote}"
            self._ledger.conclude(Verdict(exit_code=ExitCode.UNEXPECTED, reason=text))
        else:
            self._generations.adopt_first(firstborn.zygote)
        if self._keeper is not None and firstborn.companion is not None:
            self._keeper.adopt_first(firstborn.companion)

    async def run(self) -> int:
        set_title(self._ground.settings.name, "supervisor [starting]")
        self._desk.install_handlers()
        try:
            async with self._services:
                return await self._until_gone()
        except Refused as refusal:
            text = f"not started: {refusal}"
            verdict = Verdict(exit_code=ExitCode.UNEXPECTED, reason="not started", text=text)
            self._desk.end(Rung.KILL, verdict, time.monotonic())
            return await self._until_gone()

    async def _until_gone(self) -> int:
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

    def _step(self) -> bool:
        """True when everything is gone."""
        now = time.monotonic()
        self._look_at_clocks(now)
        self._reap(now)
        self._desk.obey()
        if self._keeper is not None:
            self._keeper.step(now)
        self._deadlines.check(now, awake_since=self._patience.awake_since)
        if not self._stopping.under_way:
            self._tend(now)
        self._deliver()
        self._conclude(now)
        self._services.tell(self._picture.state, now)
        self._show_title()
        return self._stopping.under_way and self._stopping.step(now)

    def _tend(self, now: float) -> None:
        """What is done only while nobody has asked to stop."""
        self._generations.check_import_time(now)
        self._check_imports()
        if self._ledger.verdict is not None:
            return
        self._generations.ensure(self._crew.trusted, now)
        if self._keeper is None or self._keeper.was_ready:
            self._crew.fill(now)
        self._recycler.measure(now)
        self._rolling.settle(now)
        self._reloading.step(now)  # before the next one begins: much recycling must not keep it waiting
        self._rolling.begin(now)
        needed = self._crew.generations_in_use() | self._reloading.needed_generations()
        self._generations.dismiss_unneeded(needed)

    def _deliver(self) -> None:
        keeper = self._keeper
        if keeper is not None and keeper.ready and keeper.companion.takes_messages:
            self._post.deliver_to(keeper)
        self._post.deliver_to(next(iter(self._crew.ready()), None))

    def _idle_for_s(self) -> float:
        now = time.monotonic()
        moments = [now + _LOOK_EVERY_S, self._crew.next_fill(now), self._deadlines.next(now)]
        moments += [self._stopping.next_deadline(now), self._recycler.next_look(now)]
        moments.append(self._services.next_word(now))
        if self._keeper is not None:
            moments.append(self._keeper.next_deadline(now))
        return max(min(moments) - now, 0.001)

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
            self._generations.forgive(slept_s)
            self._stopping.forgive(slept_s)
            if self._keeper is not None:
                self._keeper.forgive(slept_s)

    def _reap(self, now: float) -> None:
        for reaped in reaper.reap_all():
            if self._keeper is not None and self._keeper.exited(reaped.pid, reaped.exit):
                self._post.take_back(self._keeper)
            elif self._generations.exited(reaped.pid, reaped.exit) is None:
                self._strays.add(reaped, now)
        alive = self._generations.zygotes
        self._crew.adopt_exits(lambda zygote: zygote not in alive, self._strays.kept)
        self._strays.forget_old(now)

    def _check_imports(self) -> None:
        """At first start a failure is the end; later (a lost zygote) there may be workers to keep."""
        failed = self._generations.take_failure(self._crew.trusted)
        if failed is None:
            return
        reason = "the application could not be imported"
        may_retry = self._generations.deaths(self._crew.trusted) < self._ground.settings.restarts.boot_rounds
        if self._ledger.ever_ready and (self._crew.workers or may_retry):
            log.error("%s, will retry:\n%s", reason, failed)
        else:
            self._ledger.conclude(Verdict(exit_code=ExitCode.NO_IMPORT, reason=reason, text=failed))

    def _conclude(self, now: float) -> None:
        if self._stopping.under_way:
            return
        if self._crew.all_finished():
            self._ledger.conclude(Verdict(exit_code=ExitCode.DONE, reason="all work is done"))
        if self._ledger.verdict is not None:
            self._desk.end(Rung.DRAIN, self._ledger.verdict, now)

    def _farewell(self) -> int:
        early.hold_signals()  # closing the loop puts the defaults back: a late TERM must not kill us
        verdict = self._stopping.verdict
        assert verdict is not None
        extra = {"exit_code": int(verdict.exit_code)}
        log.info("stopped: %s", verdict.reason, extra=extra)
        return int(verdict.exit_code)

    def _show_title(self) -> None:
        title = supervisor_title(len(self._crew.ready()), self._crew.trusted)
        if title != self._title:
            self._title = title
            set_title(self._ground.settings.name, title)


def _keeper(ground: Ground, ledger: Ledger) -> Keeper | None:
    companion = ground.settings.companion
    if companion is None:
        return None
    return Keeper(ground=ground, companion=companion, conclude=ledger.conclude)
