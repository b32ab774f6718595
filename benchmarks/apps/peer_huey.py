# mypy: ignore-errors
"""huey on Redis, defaults (a job in progress is lost with its consumer)."""

from __future__ import annotations

from huey import RedisHuey

from benchmarks.apps.body import REDIS_URL, quiet, run

quiet()
queue = RedisHuey("bench", url=REDIS_URL)


@queue.task()
def job(payload):
    run(payload)


class Client:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def enqueue(self, payload):
        job(payload)
