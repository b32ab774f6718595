"""A machine that was suspended: hours have passed by its clocks, and nobody is late.

The clocks are injected (program.py); the processes, their deadlines and their signals are real.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.crash.supervisor.conftest import Fleet

pytestmark = pytest.mark.crash

HOURS_S = 7200.0
STALL_S = 3.0
KILLED_AFTER_S = 1.5  # who is late is asked for stacks first, and has a second for them
BOOTS_WHEN_TOLD = """
import asyncio, os, sys
serve = sys.modules["__main__"].serve
async def main(link):
    sys.modules["__main__"].note("booting")
    while not os.path.exists({go!r}):
        await asyncio.sleep(0.02)
    return await serve(link)
"""
IMPORTS_WHEN_TOLD = """
import os, sys, time
sys.modules["__main__"].note("imports")
while not os.path.exists({go!r}):
    time.sleep(0.02)
"""
EITHER_CLOCK = pytest.mark.parametrize("monotonic_runs", [False, True], ids=["linux", "others"])


@pytest.fixture(autouse=True)
def clocks_that_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_AHEAD", "1")


@EITHER_CLOCK
def test_ready_workers_are_not_stalled_by_a_suspend(fleet: Fleet, monotonic_runs: bool) -> None:
    fleet.start(procs=2, companion={}, timeouts={"stall_s": STALL_S})
    fleet.wait("ready", count=2)

    fleet.suspend(HOURS_S, monotonic_runs=monotonic_runs)

    fleet.wait_log("nobody is late")
    time.sleep(STALL_S + KILLED_AFTER_S)  # nothing must happen
    assert not fleet.events("exit")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    assert "stalled" not in fleet.log_text()


@EITHER_CLOCK
def test_work_that_finishes_during_a_drain_may_go_on_after_a_suspend(
    fleet: Fleet, monotonic_runs: bool
) -> None:
    fleet.busy()
    fleet.start(procs=2, companion={}, timeouts={"drain_s": 60.0})
    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.wait("order", order="Drain", count=2)

    fleet.suspend(HOURS_S, monotonic_runs=monotonic_runs)

    fleet.wait_log("nobody is late")
    assert not fleet.events("left")
    fleet.busy(False)
    fleet.ends(0)
    assert all(one["expected"] for one in fleet.events("exit"))
    assert len(fleet.events("left")) == 2


@EITHER_CLOCK
def test_a_worker_that_boots_is_not_late_for_a_suspend(fleet: Fleet, monotonic_runs: bool) -> None:
    go = fleet.directory / "go"
    fleet.start(BOOTS_WHEN_TOLD.format(go=str(go)), timeouts={"boot_s": 60.0})
    fleet.wait("booting")

    fleet.suspend(HOURS_S, monotonic_runs=monotonic_runs)

    fleet.wait_log("nobody is late")
    time.sleep(KILLED_AFTER_S)
    go.touch()
    fleet.wait("ready")
    assert len(fleet.events("booting")) == 1
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@EITHER_CLOCK
def test_an_import_is_not_late_for_a_suspend(fleet: Fleet, monotonic_runs: bool) -> None:
    go = fleet.directory / "go"
    fleet.start(IMPORTS_WHEN_TOLD.format(go=str(go)), timeouts={"boot_s": 60.0})
    fleet.wait("imports")
    fleet.wait_log("zygote started")  # the supervisor has read its clocks for the first time

    fleet.suspend(HOURS_S, monotonic_runs=monotonic_runs)

    fleet.wait_log("nobody is late")
    time.sleep(KILLED_AFTER_S)
    go.touch()
    fleet.wait("ready")
    assert len(fleet.events("imports")) == 1
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
