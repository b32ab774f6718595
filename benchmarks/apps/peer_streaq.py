# mypy: ignore-errors
"""streaq on Redis, defaults."""

from __future__ import annotations

from streaq import Worker

from benchmarks.apps.body import REDIS_URL, SLOTS, quiet, run_async

quiet()
worker = Worker(redis_url=REDIS_URL, concurrency=SLOTS)


@worker.task
async def job(payload: dict) -> None:
    await run_async(payload)


class Client:
    async def __aenter__(self):
        await worker.__aenter__()
        return self

    async def __aexit__(self, *error):
        await worker.__aexit__(*error)

    async def enqueue(self, payload):
        await job.enqueue(payload)

    async def enqueue_many(self, payloads):
        await worker.enqueue_many([job.enqueue(payload) for payload in payloads])
