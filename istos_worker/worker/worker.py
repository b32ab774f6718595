"""One queue's worker in one process. Joins link, pump and slots; decides nothing about a single job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from istos_worker.serialization import JsonSerializer, Serializer
from istos_worker.worker.handlers import Handlers
from istos_worker.worker.settings import WorkerHooks, WorkerSettings
from istos_worker.worker.statistics import Statistics


class Undeclarable(Protocol):
    def undeclare(self) -> None: ...


class Mesh(Protocol):
    """What a worker needs of a session: `wire.session.Session`, or a stand-in without network."""

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]: ...

    def subscribe(self, key: str, take: Callable[[list[bytes]], None]) -> Undeclarable: ...

    def declare_token(self, key: str) -> Undeclarable: ...


class Worker:
    """`async with Worker(settings, session=..., handlers=...) as worker:` claims and runs jobs until the end
    of the block, which hands back what is not finished. Start never waits for an owner."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        session: Mesh,
        handlers: Handlers,
        serializer: Serializer | None = None,
        hooks: WorkerHooks | None = None,
    ) -> None:
        self.settings = settings
        self.statistics = Statistics(slots=settings.concurrency)
        self._session = session
        self._handlers = handlers
        self._serializer: Serializer = serializer or JsonSerializer()
        self._hooks = hooks or WorkerHooks()

    @property
    def worker_id(self) -> str:
        return self.settings.worker_id

    def running(self) -> list[str]:
        """Ids of the jobs running now: what an obituary names and `bury` charges."""
        raise NotImplementedError

    def labels(self) -> list[str]:
        """The same jobs for people: "jobs/email 01HZX (send)"."""
        raise NotImplementedError

    async def start(self) -> None:
        """Begins to claim. Returns at once; `statistics.connected` turns true when an owner answers."""
        raise NotImplementedError

    def quiet(self) -> None:
        """Claims nothing more until `resume()`; what runs goes on."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    async def drain(self, deadline_s: float | None = None) -> None:
        """Claims nothing more, waits for what runs, and stops. After `deadline_s` async jobs are cancelled and
        everything held is released uncharged; None: however long it takes. Idempotent; a later call with an
        earlier deadline wins."""
        raise NotImplementedError

    async def hand_back(self) -> None:
        """`drain(0)`."""
        await self.drain(0.0)

    async def stop(self) -> None:
        """`hand_back()`, and the token and subscriptions go. Idempotent."""
        await self.drain(0.0)

    async def idle(self) -> None:
        """Returns when nothing is running, prefetched or waiting to be confirmed."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
