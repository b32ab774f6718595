# mypy: ignore-errors
"""rq on Redis, defaults; the worker class is chosen on the command line."""

from __future__ import annotations

from redis import Redis
from rq import Queue

from benchmarks.apps.body import REDIS_URL, quiet, run

quiet()
_NAME = "benchmarks.apps.peer_rq.job"


def job(payload):
    run(payload)


class Client:
    def __enter__(self):
        self._queue = Queue("default", connection=Redis.from_url(REDIS_URL))
        return self

    def __exit__(self, *error):
        pass

    def enqueue(self, payload):
        self._queue.enqueue(_NAME, args=(payload,))

    def enqueue_many(self, payloads):
        self._queue.enqueue_many([Queue.prepare_data(_NAME, args=(payload,)) for payload in payloads])
