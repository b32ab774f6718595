# mypy: ignore-errors
"""procrastinate on PostgreSQL, defaults."""

from __future__ import annotations

import procrastinate

from benchmarks.apps.body import POSTGRES_URL, quiet, run_async

quiet()
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=POSTGRES_URL))


@app.task(name="job")
async def job(payload):
    await run_async(payload)


class Client:
    async def __aenter__(self):
        await app.open_async()
        return self

    async def __aexit__(self, *error):
        await app.close_async()

    async def enqueue(self, payload):
        await job.defer_async(payload=payload)

    async def enqueue_many(self, payloads):
        await job.batch_defer_async(*[{"payload": payload} for payload in payloads])
