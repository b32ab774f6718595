"""The owner inside a fleet (`--embedded`): a process of its own that the supervisor starts first and stops last.
Binds the queues that the targets declare, and runs their schedules."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.exits import ExitCode

if TYPE_CHECKING:
    from istos_worker.fleet.application import Application
    from istos_worker.wire.session import Session
    from supervisor.companion_link import CompanionLink

log = logging.getLogger(__name__)


def main() -> int:
    from supervisor.companion_link import companion_link

    link = companion_link()  # before anything slow is imported
    from istos_worker.fleet.application import Application
    from istos_worker.fleet.loops import run_owner_in_loop
    from istos_worker.fleet.plan import Plan
    from istos_worker.observability.logs import Logs

    application = Application(Plan.take(os.environ))
    with Logs(**application.plan.log.named()).kept("owner"):
        return run_owner_in_loop(_main(link, application))


async def _main(link: CompanionLink, application: Application) -> int:
    from istos_worker.errors import IstosError
    from istos_worker.fleet.target import LoadRefused

    async with link:
        try:
            application.load()
            async with owning(application) as session:
                link.ready()
                await _obey(link, application, session)
        except LoadRefused as refused:
            return await _give_up(link, str(refused), ExitCode.NO_IMPORT)
        except (IstosError, OSError) as failed:
            return await _give_up(link, f"the owner cannot start: {failed}", ExitCode.UNEXPECTED)
    return 0


@contextlib.asynccontextmanager
async def owning(application: Application) -> AsyncIterator[Session]:
    """Session open, queues owned, schedules running, until the end of the block."""
    from istos_worker.app.serving import owning as bound
    from istos_worker.wire.session import Session

    storage = application.storage()
    roles = application.roles(storage)
    _forget_stale_socket(application.plan.owner_endpoint)
    async with contextlib.AsyncExitStack() as stack:
        session = await Session.open(application.owner_network())
        stack.push_async_callback(session.aclose)
        stack.push_async_callback(storage.aclose)
        await stack.enter_async_context(bound(roles, session))
        await stack.enter_async_context(application.beating(session, roles))
        yield session


def _forget_stale_socket(endpoint: str | None) -> None:
    """An owner that was killed leaves its socket behind; there is no other one while this one starts."""
    if endpoint is not None:
        path = Path(endpoint.partition("/")[2])
        for stale in (path, path.with_name(f"{path.name}.lock")):
            stale.unlink(missing_ok=True)


async def _obey(link: CompanionLink, application: Application, session: Session) -> None:
    from istos_worker.fleet.burial import bury
    from supervisor.orders import Drain, HandBack, Message, Orphaned

    prefixes = [one.settings.prefix for one in application.consumed("owner")]
    background: set[asyncio.Task[None]] = set()

    async def deal_with(message: Message) -> None:
        if "bury" in message.body:
            await bury(session, prefixes, message.body, application.plan.token)
        link.acknowledge(message)

    async for order in link.orders():
        match order:
            case Message():
                task = asyncio.create_task(deal_with(order))
                background.add(task)
                task.add_done_callback(background.discard)
            case Drain() | HandBack() | Orphaned():
                return
            case _:
                pass  # quiet and resume are the workers' business


async def _give_up(link: CompanionLink, text: str, code: int) -> int:
    link.give_up(text, code)
    # The words are on their way: the supervisor says when to go, or is gone itself.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            async for _ in link.orders():
                break
    return code


if __name__ == "__main__":
    sys.exit(main())
