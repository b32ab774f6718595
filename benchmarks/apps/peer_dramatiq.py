# mypy: ignore-errors
"""dramatiq on Redis, defaults."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.apps.body import REDIS_URL, quiet, run

quiet()
dramatiq.set_broker(RedisBroker(url=REDIS_URL))


@dramatiq.actor
def job(payload):
    run(payload)


class Client:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def enqueue(self, payload):
        job.send(payload)
