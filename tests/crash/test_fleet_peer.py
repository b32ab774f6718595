"""A fleet drains an owner that is the public istos 0.3 package, and an istos 0.3 worker drains a fleet's owner."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from istos import Istos
from istos.communication.config import IstosZenohConfig

from istos_worker.client import Client
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.fleets import Fleets
from tests.fixtures.programs import LONG_S

pytestmark = [
    pytest.mark.crash,
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:.*neither authentication"),
]

APP = """
from pathlib import Path
from typing import Any
from istos_worker import App

app = App()
app.queue("jobs/a", keep_results=True)


@app.worker("jobs/a")
def work(job):
    with open("done.txt", "a") as done:
        done.write(f"{job}\\n")
"""


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"tcp/127.0.0.1:{found.getsockname()[1]}"


@asynccontextmanager
async def peer(app: Istos) -> AsyncIterator[None]:
    async with app.serving():
        yield


def peer_app(**network: Any) -> Istos:
    return Istos(config=IstosZenohConfig(multicast_scouting=False, **network))


async def test_a_burst_drains_an_owner_of_the_peer_and_ends(tmp_path: Path, runtime_folder: Path) -> None:
    endpoint = free_endpoint()
    app = peer_app(listen_endpoints=[endpoint])
    app.queue("jobs/a", keep_results=True)
    fleets = Fleets(tmp_path, runtime_folder, "")
    fleets.write("app", APP)
    try:
        async with peer(app):
            for number in range(50):
                await app.enqueue("jobs/a", number)
            program = fleets.start("app", "--connect", endpoint, "--procs", "2", "--burst")
            assert await asyncio.to_thread(program.wait) == 0, program.log
        done = sorted(int(line) for line in (tmp_path / "done.txt").read_text().split())
        assert done == list(range(50))
        program.assert_nothing_left()
    finally:
        fleets.end()


async def test_a_worker_of_the_peer_drains_the_owner_of_a_fleet(tmp_path: Path, runtime_folder: Path) -> None:
    endpoint = free_endpoint()
    fleets = Fleets(tmp_path, runtime_folder, "")
    seen: list[int] = []
    app = peer_app(connect_endpoints=[endpoint])

    @app.worker("jobs/b", concurrency=2)
    async def work(job: int) -> int:
        seen.append(job)
        return job

    fleets.write("app", APP + '\napp.queue("jobs/b", keep_results=True)\n')
    try:
        program = fleets.start("app", "--embedded", "--data", "data", "--procs", "1", "--listen", endpoint)
        await asyncio.to_thread(program.until_serving, 1)
        async with peer(app), Client(ZenohSettings(connect=(endpoint,))) as client:
            ids = await client.enqueue_many("jobs/b", range(20), timeout_s=LONG_S)
            for job_id in ids:
                ended = await client.result("jobs/b", job_id, wait_s=LONG_S)
                assert ended["state"] == "done"
        assert sorted(seen) == list(range(20))
        assert await asyncio.to_thread(program.stop) == 0
    finally:
        fleets.end()
