# mypy: ignore-errors
"""arq on Redis, defaults."""

from __future__ import annotations

from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.apps.body import REDIS_URL, SLOTS, quiet, run_async

quiet()


async def job(ctx, payload):
    await run_async(payload)


class WorkerSettings:
    functions = [job]  # noqa: RUF012
    redis_settings = RedisSettings.from_dsn(REDIS_URL)
    max_jobs = SLOTS


class Client:
    async def __aenter__(self):
        self._pool = await create_pool(RedisSettings.from_dsn(REDIS_URL))
        return self

    async def __aexit__(self, *error):
        await self._pool.aclose()

    async def enqueue(self, payload):
        await self._pool.enqueue_job("job", payload)
