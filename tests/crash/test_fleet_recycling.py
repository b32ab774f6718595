"""Thousands of jobs through workers that are replaced all the time: each runs once, and the fleet never thins out.

`ISTOS_LONG=1` runs the size of the promise: 10,000 jobs, 4 workers of 50 jobs each.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fixtures.fleets import Fleets, RunningFleet
from tests.fixtures.programs import LONG_S
from tests.fixtures.telling import Telling

pytestmark = pytest.mark.crash

LONG = bool(os.environ.get("ISTOS_LONG"))
PROCS = 4
JOBS = 10_000 if LONG else 800
JOB_S = 0.02
WITHIN_S = 600.0 if LONG else LONG_S


@contextmanager
def counting_ready(program: RunningFleet) -> Iterator[Counter[int]]:
    """How often the fleet was seen with that many ready workers: it is asked without a pause in between."""
    seen: Counter[int] = Counter()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen[len(program.ready_workers())] += 1
            time.sleep(0.002)  # two cores are shared with the fleet

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def fewest_ready(log: str) -> int:
    """By what the fleet itself told, line by line, from the time when all were ready until it was told to stop:
    between two looks nothing stays hidden."""
    lines = sorted(log.partition(" stopping: ")[0].splitlines())  # by time: many processes write them
    ready, fewest = 0, PROCS
    all_were_ready = False
    for line in lines:
        ready += bool(re.search(r"supervisor: worker \d+ ready after", line))
        ready -= bool(re.search(r"worker \d+: leaving", line))
        all_were_ready = all_were_ready or ready == PROCS
        fewest = min(fewest, ready) if all_were_ready else fewest
    return fewest


def test_ten_thousand_jobs_through_recycled_workers_run_once_and_three_are_always_ready(
    fleet: Fleets,
) -> None:
    jobs = Telling(fleet)
    program = fleet.start(
        *("app", "--embedded", "--data", "data", "--procs", str(PROCS)),
        *("--concurrency", "2", "--max-jobs", "50"),
    )
    program.until_serving(PROCS)
    names = [f"job-{number}" for number in range(JOBS)]

    with counting_ready(program) as seen:
        began = time.monotonic()
        jobs.enqueue((name, JOB_S) for name in names)
        jobs.until_told(program, "end", JOBS, within_s=WITHIN_S)
        took_s = time.monotonic() - began

    recycled = (program.status() or {})["totals"]["recycled"]
    print(
        f"{took_s:.1f} s, {recycled} recycled, ready workers seen: {sorted(seen.items())}, "
        f"fewest by the log: {fewest_ready(program.log)}"
    )
    jobs.assert_each_ran_once(names)
    assert min(seen) >= PROCS - 1
    assert fewest_ready(program.log) >= PROCS - 1
    assert recycled >= JOBS // 50 // 4
    program.until(lambda: jobs.counts()["done"] == JOBS, "acknowledged jobs")
    assert program.stop() == 0
    program.assert_nothing_left()
