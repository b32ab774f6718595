# mypy: ignore-errors
"""taskiq on a Redis stream, defaults, except that jobs enqueued before the group exists are read too."""

from __future__ import annotations

from taskiq_redis import RedisStreamBroker

from benchmarks.apps.body import REDIS_URL, quiet, run_async

quiet()
broker = RedisStreamBroker(url=REDIS_URL, consumer_id="0")


@broker.task(task_name="job")
async def job(payload: dict) -> None:
    await run_async(payload)


class Client:
    async def __aenter__(self):
        await broker.startup()
        return self

    async def __aexit__(self, *error):
        await broker.shutdown()

    async def enqueue(self, payload):
        await job.kiq(payload)
