"""Signals to groups, to solo processes, and to single workers; what a fleet shows to others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from istos_worker.client import Client
from tests.fixtures.fleet_jobs import APP, hold_a_job, result_of, run_jobs
from tests.fixtures.fleets import Fleets, RunningFleet, titles
from tests.fixtures.programs import LONG_S

pytestmark = pytest.mark.crash

SECRET = "s3cret-t0ken"
GUARDED = f"""
from istos_worker import App, TokenAuthorizer
app = App(authorizer=TokenAuthorizer("{SECRET}"))
app.queue("jobs/a", keep_results=True)

@app.worker("jobs/a")
def work(job):
    return job
"""


def starts(path: Path) -> list[list[str]]:
    """(pid, attempt) of every start of the held job."""
    return [line.split() for line in Path(f"{path}.starts").read_text().splitlines()]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_to_the_whole_group_kills_no_job(
    fleet: Fleets, tmp_path: Path, signum: signal.Signals
) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "2")
    path = tmp_path / "go"
    hold_a_job(fleet, program, path)

    os.killpg(program.pid, signum)
    program.says("reload" if signum == signal.SIGHUP else "stopping")
    path.touch()
    if signum == signal.SIGHUP:
        program.until(lambda: {one["generation"] for one in program.workers()} == {2}, "new generation")
        assert len(run_jobs(fleet, 10)) == 10
        program.send(signal.SIGTERM)

    assert program.wait() == 0, program.log
    assert len(starts(path)) == 1
    program.assert_nothing_left()


def test_a_worker_told_to_stop_is_replaced_and_finishes_its_job(fleet: Fleets, tmp_path: Path) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "2")
    path = tmp_path / "go"
    job_id = hold_a_job(fleet, program, path)
    holder = int(starts(path)[0][0])

    os.kill(holder, signal.SIGTERM)
    program.until(
        lambda: len([one for one in program.ready_workers() if one["pid"] != holder]) == 2, "replacement"
    )
    path.touch()

    assert result_of(fleet, job_id) == {"state": "done", "result": 1}
    assert len(starts(path)) == 1
    assert program.stop() == 0


def test_solo_finishes_its_job_after_one_ctrl_c(fleet: Fleets, tmp_path: Path) -> None:
    program, path = solo_with_a_job(fleet, tmp_path)
    program.send(signal.SIGINT)
    program.says("finishing what runs")
    path.touch()
    assert program.wait() == 0, program.log
    assert len(starts(path)) == 1


def test_solo_hands_its_job_back_after_two_and_leaves_at_once_after_three(
    fleet: Fleets, tmp_path: Path
) -> None:
    program, path = solo_with_a_job(fleet, tmp_path)
    for _ in range(2):
        program.send(signal.SIGINT)
        time.sleep(1.1)  # closer together they count as one
    assert program.wait() == 0, program.log
    path.touch()
    again = fleet.start("app", "--solo", "--data", "data")
    again.until(lambda: len(starts(path)) == 2, "second start")
    assert starts(path)[1][1] == "1"
    assert again.stop() == 0


def solo_with_a_job(fleet: Fleets, folder: Path) -> tuple[RunningFleet, Path]:
    fleet.write("app", APP)
    program = fleet.start("app", "--solo", "--data", "data")
    path = folder / "go"
    hold_a_job(fleet, program, path)
    return program, path


def test_a_token_is_used_and_never_shown(fleet: Fleets) -> None:
    fleet.write("app", GUARDED)
    program = fleet.start("app", "--embedded", "--data", ":memory:", "--procs", "1", "--token", SECRET)
    program.until_serving(1)

    async def work() -> object:
        async with Client(fleet.network, token=SECRET) as client:
            job_id = await client.enqueue("jobs/a", 7, timeout_s=LONG_S)
            return (await client.result("jobs/a", job_id, wait_s=LONG_S))["result"]

    assert asyncio.run(work()) == 7
    family = [psutil.Process(program.pid), *program.family()]
    assert len(family) == 4
    assert not [title for title in titles(family) if SECRET in title]
    assert program.stop() == 0
    assert SECRET not in program.log
    assert program.out == ""


def test_a_recycled_worker_leaves_after_its_jobs_and_none_is_lost(fleet: Fleets) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "2", "--max-jobs", "40")
    program.until_serving(2)
    results = run_jobs(fleet, 400)
    assert [result[0] for result in results] == list(range(400))
    program.until(lambda: (now := program.status()) and now["totals"]["recycled"] >= 1, "recycled worker")
    assert program.stop() == 0
    program.assert_nothing_left()
