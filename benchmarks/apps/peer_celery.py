# mypy: ignore-errors
"""celery on Redis, defaults; the pool is chosen on the command line."""

from __future__ import annotations

from celery import Celery

from benchmarks.apps.body import REDIS_URL, quiet, run

quiet()
app = Celery("bench", broker=REDIS_URL)


@app.task(name="job")
def job(payload):
    run(payload)


class Client:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def enqueue(self, payload):
        job.delay(payload)
