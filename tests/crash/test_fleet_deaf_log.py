"""A log that nobody reads: the pipe is full, and the fleet goes on and ends as if there were no log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fleets import Fleets
from tests.fixtures.telling import APP, Telling

pytestmark = pytest.mark.crash

DRAIN_S = 5.0
JOBS = 500
TALKATIVE = APP.replace(
    'tell("end"', 'import logging; logging.getLogger("app").warning("x" * 2000)\n    tell("end"'
)


@contextlib.contextmanager
def full_pipe(path: Path) -> Iterator[None]:
    """A named pipe that is open for reading and full to the last byte."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    yield
    os.close(writer)
    os.close(reader)


def test_a_fleet_whose_log_nobody_reads_works_and_leaves_in_time(fleet: Fleets, tmp_path: Path) -> None:
    jobs = Telling(fleet)
    fleet.write("app", TALKATIVE)
    names = [f"job-{number}" for number in range(JOBS)]
    with full_pipe(tmp_path / "pipe"):
        program = fleet.start(
            *("app", "--embedded", "--data", "data", "--procs", "2", "--drain-timeout", f"{DRAIN_S}s"),
            err=tmp_path / "pipe",
        )
        program.until_serving(2)
        jobs.enqueue((name, 0.0) for name in names)
        jobs.until_told(program, "end", JOBS)
        jobs.assert_each_ran_once(names)

        began = time.monotonic()
        assert program.stop() == 0
        took_s = time.monotonic() - began
        program.assert_nothing_left()
    print(f"{JOBS} jobs; TERM to the end: {took_s:.2f} s")
    assert took_s < DRAIN_S
