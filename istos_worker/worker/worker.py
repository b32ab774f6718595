"""One queue's worker in one process. Joins link, pumps and slots; decides nothing about a single job."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType
from typing import Self

from istos_worker.serialization import JsonSerializer, Serializer
from istos_worker.wire.keys import notify_key, orders_key, worker_key
from istos_worker.worker.consumer import Consumer
from istos_worker.worker.forked import worker_lives_here
from istos_worker.worker.handlers import Handlers
from istos_worker.worker.link import Mesh, Undeclarable
from istos_worker.worker.settings import WorkerHooks, WorkerSettings
from istos_worker.worker.statistics import Statistics
from istos_worker.worker.workplace import Gate

log = logging.getLogger(__name__)
_UNWIND_S = 0.5


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
        self._gate = Gate()
        self._consumer: Consumer | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._deadline_moved = asyncio.Event()
        self._declared: list[Undeclarable] = []

    @property
    def worker_id(self) -> str:
        return self.settings.worker_id

    def running(self) -> list[str]:
        """Ids of the jobs running now: what an obituary names and `bury` charges."""
        return [] if self._consumer is None else [each.job_id for each in self._consumer.slots.running]

    def labels(self) -> list[str]:
        """The same jobs for people: "jobs/email 01HZX (send)"."""
        return [] if self._consumer is None else [each.label for each in self._consumer.slots.running]

    async def start(self) -> None:
        """Begins to claim. Returns at once; `statistics.connected` turns true when an owner answers.

        Raises RuntimeError when called twice."""
        if self._consumer is not None or self._ending is not None:
            raise RuntimeError(f"the worker of {self.settings.prefix!r} has been started already")
        worker_lives_here()
        prefix, worker_id = self.settings.prefix, self.worker_id
        consumer = self._consumer = Consumer(
            self.settings,
            session=self._session,
            handlers=self._handlers,
            serializer=self._serializer,
            statistics=self.statistics,
            hooks=self._hooks,
            gate=self._gate,
        )
        self._declared = [
            self._session.subscribe(orders_key(prefix, worker_id), consumer.ordered),
            self._session.subscribe(notify_key(prefix), consumer.notified),
            self._session.declare_token(worker_key(prefix, worker_id)),
        ]
        self._consuming = asyncio.create_task(consumer.run(), name=f"istos-worker {prefix}")

    def quiet(self) -> None:
        """Claims nothing more until `resume()`; what runs goes on."""
        self._gate.quiet = True
        if self._consumer is not None:
            self._consumer.slots.release_waiting()
            self._consumer.wake()

    def resume(self) -> None:
        self._gate.quiet = False
        if self._consumer is not None:
            self._consumer.wake()

    async def drain(self, deadline_s: float | None = None) -> None:
        """Claims nothing more, waits for what runs, and stops. After `deadline_s` async jobs are cancelled and
        everything held is released uncharged; None: however long it takes. May be called again: the nearest
        deadline counts."""
        if deadline_s is not None:
            at = time.monotonic() + deadline_s
            self._deadline = at if self._deadline is None else min(self._deadline, at)
            self._deadline_moved.set()
        self._gate.draining = True
        if self._consumer is not None:
            self._consumer.slots.drain(deadline_s)
            self._consumer.wake()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def hand_back(self) -> None:
        """`drain(0)`: everything held is back with the owner when this returns, if the owner can be reached."""
        await self.drain(0.0)

    async def stop(self) -> None:
        """The end of the `async with` block: `hand_back()`. Idempotent."""
        await self.drain(0.0)

    async def _end(self) -> None:
        consumer, consuming = self._consumer, self._consuming
        if consumer is None or consuming is None:
            return
        try:
            await self._until_deadline(consuming)
            if not consuming.done():
                consumer.slots.hand_back()
                await asyncio.wait((consuming,), timeout=min(_UNWIND_S, self.settings.release_s))
            if not consuming.done():
                consumer.slots.give_up_all()
                await asyncio.wait((consuming,), timeout=max(self.settings.release_s - _UNWIND_S, 0.0))
        finally:
            consuming.cancel()
            await asyncio.wait((consuming,))
            consumer.close()
            for declared in self._declared:
                declared.undeclare()

    async def _until_deadline(self, consuming: asyncio.Task[None]) -> None:
        while not consuming.done():
            self._deadline_moved.clear()
            left_s = None if self._deadline is None else self._deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            moved = asyncio.ensure_future(self._deadline_moved.wait())
            await asyncio.wait((consuming, moved), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
