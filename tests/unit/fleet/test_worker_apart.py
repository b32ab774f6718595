"""A command line is read in a process of its own, and what comes of that reaches this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from istos_worker.cli.worker_apart import read_apart
from istos_worker.cli.worker_command import run
from istos_worker.cli.worker_fleet import Fleet
from istos_worker.cli.worker_run import HandOver


def read(*words: str) -> Callable[[HandOver], int]:
    return lambda hand_over: int(run.main(list(words), standalone_mode=False, obj=hand_over))


def test_a_fleet_reaches_the_process_that_is_to_run_it(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"

    fleet = read_apart(read("shop", "--procs", "3", "--token", "s3cret", "--pidfile", str(pidfile)))

    assert isinstance(fleet, Fleet)
    assert (fleet.options.procs, fleet.options.pidfile) == (3, pidfile)
    assert (fleet.plan.targets, fleet.plan.token) == (("shop",), "s3cret")


def test_what_is_no_fleet_is_left_to_the_process_that_asked() -> None:
    assert read_apart(read("shop", "--solo")) is None


def test_who_handed_over_nothing_leaves_an_exit_code() -> None:
    assert read_apart(lambda _: 2) == 2
    assert read_apart(lambda _: 0) == 0


def test_a_reader_that_is_killed_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    def die(_: HandOver) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert read_apart(die) == 1
    assert capfd.readouterr().err == "istos-worker: SIGKILL ended the process that reads the options\n"


def test_a_failure_there_is_told_once_and_is_a_failure_here(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: HandOver) -> int:
        raise LookupError("no such thing")

    assert read_apart(fail) == 1
    assert capfd.readouterr().err.count("LookupError: no such thing") == 1


def test_a_full_disk_under_the_output_is_one_line_and_not_a_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_: HandOver) -> int:
        raise OSError(28, os.strerror(28))

    assert read_apart(fail) == 1
    assert capfd.readouterr().err == "istos-worker: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_were_closed_works_all_the_same(closed: str, tmp_path: Path) -> None:
    words = f"{sys.executable} -m istos_worker.cli.worker no_such_module {closed}"

    done = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=20)

    assert done.returncode == 4
    assert "Traceback" not in done.stderr
