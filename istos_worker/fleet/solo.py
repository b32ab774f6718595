"""`--solo`: owner and workers in this one process, for development and debuggers. No forks, no supervisor; the
terminal is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Any

from istos_worker.errors import IstosError
from istos_worker.fleet.application import Application
from istos_worker.fleet.burst import until_empty
from istos_worker.fleet.consumers import Consumers
from istos_worker.fleet.owner import owning
from istos_worker.fleet.plan import Plan
from istos_worker.fleet.solo_probes import Probes, SoloPicture
from istos_worker.fleet.target import LoadRefused
from istos_worker.observability.logs import Logs
from istos_worker.wire.session import Session
from istos_worker.worker.running import JobLogFilter
from istos_worker.worker.settings import new_worker_id
from supervisor.exits import ExitCode
from supervisor.titles import set_title

log = logging.getLogger(__name__)

SAME_SIGNAL_S = 1.0


def run_solo(plan: Plan, probes: Probes | None = None) -> int:
    """Runs until stopped; the exit code."""
    os.environ.update(ISTOS_WORKER_INDEX="0", ISTOS_WORKER_COUNT="1", ISTOS_WORKER_GENERATION="1")
    set_title("istos-worker", "solo")
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _debug
    application = Application(plan)
    with Logs(filters=[JobLogFilter()], **plan.log.named()).kept("solo") as writer:
        try:
            application.load()
            stops = Stops()
            picture = SoloPicture(is_stopping=stops.first.is_set, lines_lost=lambda: writer.lost)
            return asyncio.run(_main(application, stops, picture, probes))
        except LoadRefused as refused:
            log.error("%s", refused)
            return ExitCode.NO_IMPORT
        except (IstosError, OSError) as failed:
            log.error("%s", failed)
            return ExitCode.UNEXPECTED


def _debug(*_: object, **__: object) -> None:
    """pdb, without its own Ctrl-C: after a `continue` it would stop the event loop somewhere, instead of us."""
    import pdb

    pdb.Pdb(nosigint=True).set_trace(sys._getframe(1))


async def _main(application: Application, stops: Stops, picture: SoloPicture, probes: Probes | None) -> int:
    stops.install(asyncio.get_running_loop())
    async with contextlib.AsyncExitStack() as stack:
        if probes is not None:
            await stack.enter_async_context(probes.served(picture))
        if application.plan.data is not None:
            session = await stack.enter_async_context(owning(application))
        else:
            session = await Session.open(application.worker_network())
            stack.push_async_callback(session.aclose)
        await _work(application, session, stops, picture)
    return 0


async def _work(application: Application, session: Session, stops: Stops, picture: SoloPicture) -> None:
    plan = application.plan
    async with application.attached(session):
        consumers = Consumers(
            application.consumed(new_worker_id()), session, on_change=lambda: None, retire=_cannot_retire
        )
        await consumers.start()
        picture.consumers = consumers
        log.info("one process, slots: %d; Ctrl-C stops", consumers.totals().slots)
        ending: list[asyncio.Task[Any]] = [asyncio.create_task(stops.first.wait())]
        if plan.burst:
            ending.append(asyncio.create_task(until_empty(session, consumers, token=plan.token)))
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        await _leave(consumers, stops, plan.deadlines.finish_s(plan.deadlines.drain_s))


async def _leave(consumers: Consumers, stops: Stops, finish_s: float) -> None:
    """Lets jobs finish; a second Ctrl-C hands them back."""
    draining = asyncio.create_task(consumers.drain(finish_s))
    hurried = asyncio.create_task(stops.second.wait())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        await consumers.drain(0.0)
    await draining
    hurried.cancel()
    await consumers.stop()


def _cannot_retire(reason: str) -> None:
    log.error("%s; in a fleet this process would be replaced", reason)


class Stops:
    """TERM or INT once: finish; again, a second or more later: hand back; a third time: leave at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._last: dict[int, float] = {}

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signum, self.take, signum, loop)
        loop.add_signal_handler(signal.SIGQUIT, self._hurry)

    def take(self, signum: int, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if now - self._last.get(signum, float("-inf")) < SAME_SIGNAL_S:
            return
        self._last[signum] = now
        if not self.first.is_set():
            log.info("finishing what runs; Ctrl-C again hands it back")
            self.first.set()
        elif not self.second.is_set():
            self.second.set()
        else:
            os._exit(1)

    def _hurry(self) -> None:
        self.first.set()
        self.second.set()
