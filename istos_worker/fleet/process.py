"""One forked worker process: opens its session, consumes its queues, obeys the supervisor's orders. Knows the link
and the workers; decides nothing about a single job."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, assert_never

from istos_worker.errors import IstosError
from istos_worker.fleet.application import Application
from istos_worker.fleet.burial import bury
from istos_worker.fleet.burst import until_empty
from istos_worker.fleet.consumers import Consumers
from istos_worker.fleet.loops import run_in_loop
from istos_worker.fleet.plan import Deadlines
from istos_worker.observability.figures import QueueFigures, write_figures
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings
from istos_worker.worker.forked import worker_lives_here
from istos_worker.worker.settings import new_worker_id
from supervisor.heap import give_back
from supervisor.link import WorkerLink
from supervisor.orders import Drain, HandBack, Message, Order, Orphaned, Quiet, Resume

log = logging.getLogger(__name__)

FIGURES_EVERY_S = 1.0
LONGEST_PAUSE_S = 5.0
SILENT_AT_MOST_S = 1.0


def live(link: WorkerLink, *, application: Application) -> int:
    """Runs in the forked child; the exit code."""
    worker_lives_here(gives_signals_back=True)
    os.environ["ISTOS_WORKER_INDEX"] = str(link.slot)
    os.environ["ISTOS_WORKER_COUNT"] = str(link.count)
    os.environ["ISTOS_WORKER_GENERATION"] = str(link.generation)
    with application.logs.kept(f"worker {link.slot}"):
        return run_in_loop(_main(link, application))


async def _main(link: WorkerLink, application: Application) -> int:
    async with link:
        process = WorkerProcess(link, application)
        await process.run()
    return 0


class WorkerProcess:
    """Ready is "the loop runs"; whether an owner is reachable is a figure beside it."""

    def __init__(self, link: WorkerLink, application: Application) -> None:
        self._link = link
        self._application = application
        self._plan = application.plan
        self._worker_id = new_worker_id()
        self._consumers: Consumers | None = None
        self._session: Session | None = None
        self._is_quiet = False
        self._opening: asyncio.Task[Session] | None = None
        self._told_to_go = asyncio.Event()
        self._deadline_s: float | None = None
        self._kept: dict[str, QueueFigures] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until everything is drained."""
        self._link.name_self(self._worker_id)
        self._link.describe = self._describe
        self._spawn(self._obey())
        session = await self._opened_unless_told_to_go()
        if session is None:
            return
        try:
            async with self._application.attached(session):
                await self._serve(session)
        finally:
            await session.aclose()

    async def _opened_unless_told_to_go(self) -> Session | None:
        self._opening = asyncio.create_task(self._open_patiently())
        try:
            return await self._opening
        except asyncio.CancelledError:
            if self._told_to_go.is_set():
                return None
            raise

    async def _open_patiently(self) -> Session:
        """An owner or router that is away is no failure: the process is up, and tries for ever."""
        network, config = self._application.network, self._application.config
        # Zenoh takes three seconds to find that nobody is there: longer than a user watches a silent log.
        words = asyncio.get_running_loop().call_later(SILENT_AT_MOST_S, self._still_tries, network)
        pause_s = 0.1
        while True:
            try:
                return await Session.open(network, config)
            except IstosError as refused:
                log.warning("%s; will try again", refused)
                self._boots_without_owner()
            finally:
                words.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _still_tries(self, settings: ZenohSettings) -> None:
        log.warning("still trying to reach %s", ", ".join(settings.connect) or "the network")
        self._boots_without_owner()

    def _boots_without_owner(self) -> None:
        self._link.ready()
        self._link.report(done=0, busy=0, slots=0, serving=False)

    async def _serve(self, session: Session) -> None:
        self._session = session
        consumers = Consumers(
            self._application.consumed(self._worker_id),
            session,
            on_change=self._report,
            retire=self._link.retire,
        )
        await consumers.start()
        self._consumers = consumers
        if self._is_quiet:
            consumers.quiet()
        self._link.ready()
        self._report()
        self._spawn(self._keep_figures(consumers))
        if self._plan.burst:
            self._spawn(self._leave_when_empty(session, consumers))
        await self._told_to_go.wait()
        await consumers.drain(self._deadline_s)
        await consumers.stop()
        self._report()
        self._keep(consumers)

    async def _obey(self) -> None:
        async for order in self._link.orders():
            self._obey_one(order)

    def _obey_one(self, order: Order) -> None:
        match order:
            case Drain(deadline_s=deadline_s, reason=reason):
                self._leave(None if deadline_s is None else Deadlines.finish_s(deadline_s), reason)
            case Orphaned(deadline_s=deadline_s):
                self._leave(Deadlines.finish_s(deadline_s), "the supervisor is gone")
            case HandBack(reason=reason):
                self._leave(0.0, reason)
            case Quiet():
                self._be_quiet(True)
            case Resume():
                self._be_quiet(False)
            case Message():
                self._spawn(self._deal_with(order))
            case _:
                assert_never(order)

    def _leave(self, deadline_s: float | None, reason: str) -> None:
        if not self._told_to_go.is_set():
            log.info("leaving: %s", reason)
            self._deadline_s = deadline_s
            self._told_to_go.set()
            if self._opening is not None:
                self._opening.cancel()
        elif self._consumers is not None:
            # A drain is under way: of two deadlines the earlier one wins.
            self._spawn(self._consumers.drain(deadline_s))

    def _be_quiet(self, quiet: bool) -> None:
        self._is_quiet = quiet
        if self._consumers is not None and not self._told_to_go.is_set():
            (self._consumers.quiet if quiet else self._consumers.resume)()

    async def _leave_when_empty(self, session: Session, consumers: Consumers) -> None:
        await until_empty(session, consumers, token=self._plan.token)
        self._leave(None, "the queues are empty")

    async def _deal_with(self, message: Message) -> None:
        if "bury" in message.body and self._session is not None and self._consumers is not None:
            await bury(self._session, self._consumers.prefixes, message.body, self._plan.token)
        self._link.acknowledge(message)

    def _report(self) -> None:
        if self._consumers is None:
            return
        totals = self._consumers.totals()
        self._link.report(
            done=totals.done,
            busy=totals.busy,
            slots=totals.slots,
            held=totals.held,
            serving=totals.connected,
        )

    async def _keep_figures(self, consumers: Consumers) -> None:
        """Once a second: figures for /metrics and the board, also when nothing happens."""
        tidied = 0
        while True:
            await asyncio.sleep(FIGURES_EVERY_S)
            self._report()
            self._keep(consumers)
            totals = consumers.totals()
            if totals.busy == 0 and totals.done != tidied:
                tidied = totals.done
                give_back()

    def _keep(self, consumers: Consumers) -> None:
        figures = consumers.figures()
        if self._plan.figures is not None and figures != self._kept:
            self._kept = figures
            write_figures(self._plan.figures, os.getpid(), figures)

    def _describe(self) -> str:
        labels = [] if self._consumers is None else self._consumers.labels()
        return "running: " + (", ".join(labels) or "nothing")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
