# mypy: ignore-errors
"""SAQ on Redis, defaults."""

from __future__ import annotations

from saq import Queue

from benchmarks.apps.body import REDIS_URL, SLOTS, quiet, run_async

quiet()
queue = Queue.from_url(REDIS_URL)


async def job(ctx, *, payload):
    await run_async(payload)


settings = {"queue": queue, "functions": [job], "concurrency": SLOTS}


class Client:
    async def __aenter__(self):
        await queue.connect()
        return self

    async def __aexit__(self, *error):
        await queue.disconnect()

    async def enqueue(self, payload):
        await queue.enqueue("job", payload=payload)
