"""A worker beside a real queue state, in one process: the worker's clock is real, the owner's moves by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from istos_worker.queue.records import NewJob, QueueSettings
from istos_worker.queue.state import QueueState
from istos_worker.testing import LocalMesh, VirtualClock
from istos_worker.worker import Handler, Handlers, Worker, WorkerHooks, WorkerSettings

QUEUE = "jobs/test"


T = TypeVar("T")


class House:
    def __init__(self, **queue: Any) -> None:
        self.clock = VirtualClock()
        self.mesh = LocalMesh(self.clock)
        self.settings = QueueSettings(prefix=QUEUE, keep_results=True, retry_backoff_s=1.0, **queue)
        self.state: QueueState = self.mesh.own(self.settings, random=lambda: 0.5)
        self.retired: list[str] = []

    def enqueue(self, body: Any = None, **options: Any) -> str:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.change(lambda state: state.enqueue(NewJob(body=raw, **options), self.clock())).job_id

    def enqueue_many(self, bodies: list[Any]) -> list[str]:
        """All in one turn of the owner."""
        return self.change(
            lambda state: [
                state.enqueue(NewJob(body=json.dumps(body).encode()), self.clock()).job_id for body in bodies
            ]
        )

    def change(self, change: Callable[[QueueState], T]) -> T:
        """Does something at the owner, as another client would."""
        done = change(self.state)
        self.mesh.tick()
        return done

    def advance(self, seconds: float) -> None:
        self.clock.move_to(self.clock().mono + seconds)
        self.mesh.tick()

    def state_of(self, job_id: str) -> str:
        return self.state.result(job_id, self.clock()).state

    def result_of(self, job_id: str) -> Any:
        raw = self.state.result(job_id, self.clock()).result
        return None if raw is None else json.loads(raw)

    def job(self, job_id: str) -> Any:
        job = self.state.job(job_id)
        assert job is not None
        return job

    def counts(self) -> dict[str, int]:
        return dict(self.state.stats(self.clock()).counts)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits for the owner or a worker to be in a condition."""
        async with asyncio.timeout(10):
            while not condition():
                self.mesh.changed.clear()
                await self.mesh.changed.wait()

    async def ended(self, *job_ids: str) -> None:
        await self.until(
            lambda: all(self.state_of(each) in ("done", "dead", "cancelled") for each in job_ids)
        )

    def worker(self, handlers: Handlers | Callable[..., Any], **settings: Any) -> Worker:
        if not isinstance(handlers, Handlers):
            handlers = Handlers(plain=Handler.plain(handlers))
        hooks = settings.pop("hooks", None) or WorkerHooks(
            retire=self.retired.append, on_change=self.mesh.changed.set
        )
        serializer = settings.pop("serializer", None)
        session = settings.pop("session", self.mesh)
        return Worker(
            WorkerSettings(prefix=QUEUE, **settings),
            session=session,
            handlers=handlers,
            serializer=serializer,
            hooks=hooks,
        )

    @asynccontextmanager
    async def working(
        self, handlers: Handlers | Callable[..., Any], **settings: Any
    ) -> AsyncIterator[Worker]:
        async with self.worker(handlers, **settings) as worker:
            yield worker

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.mesh.asked]
