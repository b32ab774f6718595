# mypy: ignore-errors
"""pgqueuer on PostgreSQL, defaults. Its command: `python -m benchmarks.apps.peer_pgqueuer ...`, which is
`pgq` but for one repair: in 1.6.0 `pgq run` hands its log level on as a string and dies of it.
"""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core import logconfig
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.apps.body import POSTGRES_URL, quiet, run_async

quiet()


@asynccontextmanager
async def worker():
    connection = await asyncpg.connect(POSTGRES_URL)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("job")
    async def job(job) -> None:
        await run_async(json.loads(job.payload))

    try:
        yield queue
    finally:
        await connection.close()


class Client:
    async def __aenter__(self):
        self._pool = await asyncpg.create_pool(POSTGRES_URL, min_size=4, max_size=16)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        return self

    async def __aexit__(self, *error):
        await self._pool.close()

    async def enqueue(self, payload):
        await self._queries.enqueue("job", json.dumps(payload).encode())

    async def enqueue_many(self, payloads):
        bodies = [json.dumps(payload).encode() for payload in payloads]
        await self._queries.enqueue(["job"] * len(bodies), bodies, [0] * len(bodies))


def main() -> None:
    shipped = logconfig.setup_fancy_logger
    logconfig.setup_fancy_logger = lambda level: shipped(
        logconfig.LogLevel[level] if isinstance(level, str) else level
    )
    from pgqueuer.adapters.cli.cli import app

    sys.exit(app())


if __name__ == "__main__":
    main()
