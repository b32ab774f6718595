# mypy: ignore-errors
"""The public istos 0.3.4: `python -m benchmarks.apps.peer_istos owner|worker`, and its client."""

from __future__ import annotations

import os
import sys
import warnings

from benchmarks.apps.body import SLOTS, quiet, run_async

warnings.simplefilter("ignore")
from istos import Istos  # noqa: E402
from istos.communication.config import IstosZenohConfig  # noqa: E402

QUEUE = "bench/jobs"
ENDPOINT = os.environ.get("BENCH_ENDPOINT", "tcp/127.0.0.1:7447")
DATABASE = os.environ.get("BENCH_DATABASE")


def owner() -> Istos:
    config = IstosZenohConfig(mode="peer", listen_endpoints=[ENDPOINT], multicast_scouting=False)
    options = {}
    if DATABASE:
        from istos.consistency.sqlalchemy_storage import SqlAlchemyStoragePlugin

        options["storage"] = SqlAlchemyStoragePlugin(f"sqlite+aiosqlite:///{DATABASE}")
    app = Istos(config=config, log_level="WARNING", **options)
    app.queue(QUEUE, lease_s=30)
    return app


def member() -> Istos:
    config = IstosZenohConfig(mode="client", connect_endpoints=[ENDPOINT], multicast_scouting=False)
    return Istos(config=config, log_level="WARNING")


def worker() -> Istos:
    app = member()

    @app.worker(QUEUE, concurrency=SLOTS)
    async def job(payload):
        await run_async(payload)

    return app


class Client:
    def __init__(self):
        self._app = member()
        self._serving = self._app.serving()

    async def __aenter__(self):
        await self._serving.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._serving.__aexit__(*error)

    async def enqueue(self, payload):
        await self._app.enqueue(QUEUE, payload)


if __name__ == "__main__":
    quiet()
    {"owner": owner, "worker": worker}[sys.argv[1]]().run()
