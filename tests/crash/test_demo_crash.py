"""kill -9 of a worker and then of the owner, in the middle of the demo: the report is the one without."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples import index_sources
from istos_worker.client import Client
from tests.fixtures.fleets import Fleets, RunningFleet
from tests.fixtures.programs import LONG_S, ROOT

pytestmark = pytest.mark.crash

FILES = 500


async def index_with_deaths(fleets: Fleets, program: RunningFleet, paths: list[str], report: Path) -> Any:
    async with Client(fleets.network) as client:
        await index_sources.submit(client, paths, report)
        await until_done(client, FILES // 5)
        worker = max(program.workers(), key=lambda one: one["busy"])
        psutil.Process(worker["pid"]).kill()
        await until_done(client, FILES // 2)
        program.owner_process().kill()
        async with asyncio.timeout(LONG_S):
            while (found := index_sources.read_report(report)) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        letters = await client.dead_letters(index_sources.FILES, timeout_s=30)
        assert letters == []
        return found


async def until_done(client: Client, number: int) -> None:
    async with asyncio.timeout(LONG_S):
        while (await client.stats(index_sources.FILES, timeout_s=30))["counts"]["done"] < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_the_report_is_the_same_whoever_is_killed(fleet: Fleets, tmp_path: Path) -> None:
    paths = index_sources.source_files(FILES)
    expected = index_sources.summarise([index_sources.index_file(path) for path in paths])
    program = fleet.start(
        *("examples.index_sources", "--embedded", "--data", str(tmp_path / "data")),
        *("--procs", "2", "--concurrency", "4"),
        cwd=ROOT,
    )
    program.until_serving(2)

    found = asyncio.run(index_with_deaths(fleet, program, paths, tmp_path / "report.json"))

    for name in ("files", "unparsable", "lines", "functions", "classes"):
        assert found[name] == expected[name]
    assert program.stop() == 0
    program.assert_nothing_left()
