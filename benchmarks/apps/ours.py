"""This project: the job for `istos-worker benchmarks.apps.ours`, and the client.

The fleet gets its endpoint from the command line, the client from ISTOS_ZENOH_CONNECT_ENDPOINTS.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.apps.body import Payload, quiet, run, run_async
from istos_worker import App, SyncClient
from istos_worker.wire.settings import settings_from_env

QUEUE = "bench/jobs"

quiet()
app = App("bench")
app.queue(QUEUE)

if os.environ.get("BENCH_HANDLER") == "sync":

    @app.worker(QUEUE)
    def job(payload: Payload) -> None:
        run(payload)

else:

    @app.worker(QUEUE)
    async def job_async(payload: Payload) -> None:
        await run_async(payload)


class Client:
    """An application of its own, which declares no queue and so owns none."""

    def __init__(self) -> None:
        self._app = App("bench-client")
        self._blocking: SyncClient | None = None
        self._serving: AbstractAsyncContextManager[Any] = self._app.serving()

    async def __aenter__(self) -> Client:
        await self._serving.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._blocking is not None:
            self._blocking.close()
        await self._serving.__aexit__(*error)

    def enqueue_blocking(self, payload: Payload) -> None:
        if self._blocking is None:
            self._blocking = SyncClient(settings_from_env(os.environ))
        self._blocking.enqueue(QUEUE, payload)

    async def enqueue(self, payload: Payload) -> None:
        await self._app.enqueue(QUEUE, payload)

    async def enqueue_many(self, payloads: list[Payload]) -> None:
        await self._app.enqueue_many(QUEUE, payloads, timeout_s=30.0)

    async def pause(self) -> None:
        await self._app.pause(QUEUE)

    async def resume(self) -> None:
        await self._app.resume(QUEUE)
