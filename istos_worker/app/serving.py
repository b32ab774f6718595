"""Brings an app up and down in this process, in order. Knows the parts; each part knows its own work."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from istos_worker.client import Client
from istos_worker.queue.role import QueueRole
from istos_worker.wire.session import Session
from istos_worker.worker import Worker, WorkerSettings
from istos_worker.worker.running import current_job

if TYPE_CHECKING:
    from istos_worker.app.app import App

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[None]:
    """`App.serving()`: owners, workers and schedules in this one process."""
    async with AsyncExitStack() as stack:
        session = await Session.open(app.network())
        stack.push_async_callback(session.aclose)
        stack.push_async_callback(app.storage.aclose)
        roles = list(app.queues.values())
        await stack.enter_async_context(owning(roles, session))
        await stack.enter_async_context(attached(app, session))
        await stack.enter_async_context(working(app, session))
        await stack.enter_async_context(beating(app, roles))
        yield


@contextlib.asynccontextmanager
async def connected(app: App) -> AsyncIterator[None]:
    """`App.connected()`: a client."""
    async with AsyncExitStack() as stack:
        session = await Session.open(app.network())
        stack.push_async_callback(session.aclose)
        await stack.enter_async_context(client_of(app, session))
        yield


@contextlib.asynccontextmanager
async def owning(roles: Iterable[QueueRole], session: Session) -> AsyncIterator[None]:
    """Binds the owners; at the end each writes its last batch and closes."""
    async with AsyncExitStack() as stack:
        for role in roles:
            stack.push_async_callback(role.aclose)
            await role.bind(session, asyncio.get_running_loop())
        yield


@contextlib.asynccontextmanager
async def attached(app: App, session: Session, *, token: str | None = None) -> AsyncIterator[None]:
    """The app's own life in a process: its calls work, its lifespan and hooks run. For `serving()` and for
    worker processes, which bring their own session. `token` stands in for the app's."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client_of(app, session, token=token))
        if app.lifespan is not None:
            await stack.enter_async_context(app.lifespan(app))
        stack.push_async_callback(_shut_down, app)
        for hook in app.startup_hooks:
            await _call(hook)
        yield


async def _shut_down(app: App) -> None:
    for hook in app.shutdown_hooks:
        try:
            await _call(hook)
        except Exception:  # user code: one failing hook must not keep the others from running
            log.exception("a shutdown hook of %r failed", app)


async def _call(hook: Callable[[], Any]) -> None:
    made = hook()
    if inspect.isawaitable(made):
        await made


@contextlib.asynccontextmanager
async def client_of(app: App, session: Session, *, token: str | None = None) -> AsyncIterator[None]:
    """The app's calls work until the end of the block. Within another such block on the same session, it is
    that one's client that is used."""
    if app.session is session:
        yield
        return
    if app.session is not None:
        raise RuntimeError(f"{app!r} is connected already: serving() and connected() are not nested")
    async with Client(
        session=session, token=token or app.token, serializer=app.serializer, current_job=current_job
    ) as client:
        app.session, app._client = session, client
        try:
            yield
        finally:
            app.session = app._client = None


@contextlib.asynccontextmanager
async def working(app: App, session: Session) -> AsyncIterator[None]:
    """A worker for each queue that has handlers, one slot where the app says nothing else."""
    async with AsyncExitStack() as stack:
        for prefix in app.consumed_prefixes:
            await stack.enter_async_context(_worker(app, prefix, session))
        yield


def _worker(app: App, prefix: str, session: Session) -> Worker:
    options = app.consumer_options(prefix)
    settings = WorkerSettings(
        prefix=prefix,
        concurrency=options.concurrency or 1,
        poll_interval_s=options.poll_interval_s,
        token=options.token or app.token,
    )
    return Worker(
        settings,
        session=session,
        handlers=app.handlers_of(prefix),
        serializer=options.serializer or app.serializer,
    )


@contextlib.asynccontextmanager
async def beating(app: App, roles: Iterable[QueueRole] = ()) -> AsyncIterator[None]:
    """Runs the app's schedules. `roles`: the owners in this process, whose queues tick only while they are
    active."""
    from istos_worker.scheduling.beat import Beat  # workers run no schedules

    owners = {role.prefix: role for role in roles}

    def may_fire(prefix: str) -> bool:
        owner = owners.get(prefix)
        return owner is None or owner.is_active

    async with Beat(app.schedules, app.client, may_fire=may_fire):
        yield
