"""A full medium under each thing that a fleet writes: it says so in one line, or goes on; and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from istos_worker.client import Client
from istos_worker.errors import StorageUnavailableError
from tests.fixtures.fleets import Fleets, RunningFleet
from tests.fixtures.media import Medium, medium
from tests.fixtures.programs import LONG_S, clean_env
from tests.fixtures.telling import APP, QUEUE, Telling

pytestmark = pytest.mark.crash

__all__ = ["medium"]

PAGE = os.sysconf("SC_PAGE_SIZE")
"""A full medium still takes what fits into a file's last page."""
FULL_FOR_S = 20.0 if os.environ.get("ISTOS_LONG") else 2.0


def started(fleet: Fleets, *options: str, data: str = "data") -> RunningFleet:
    program = fleet.start("app", "--embedded", "--data", data, "--procs", "2", *options)
    program.until_serving(2)
    return program


def all_done(jobs: Telling, number: int) -> bool:
    """False also while the owner has not noticed that there is room again."""
    try:
        return jobs.counts()["done"] == number
    except StorageUnavailableError:
        return False


def test_a_full_disk_under_the_owner_refuses_new_jobs_loses_none_and_is_overcome(
    fleet: Fleets, medium: Medium
) -> None:
    jobs = Telling(fleet)
    fleet.write("app", APP.replace("lease_s=30", "lease_s=1"))
    program = started(fleet, data=str(medium.folder / "data"))
    before = [f"before-{number}" for number in range(100)]
    jobs.enqueue((name, 0.2) for name in before)
    jobs.until_told(program, "start", 20)

    async def enqueue_until(client: Client, *, refused: bool) -> list[str]:
        """Names of those that were taken; until one is refused, or until one is taken."""
        taken: list[str] = []
        while True:
            name = f"{'full' if refused else 'after'}-{len(taken)}"
            try:
                await client.enqueue(QUEUE, [name, 0.0], timeout_s=LONG_S)
                taken.append(name)
            except StorageUnavailableError as error:
                if refused:
                    print(error)
                    return taken
            if not refused and taken:
                return taken
            await asyncio.sleep(0.02)

    with medium.full():
        during = jobs.ask(lambda client: enqueue_until(client, refused=True))
        program.says("not consuming")
        running = {line.name for line in jobs.told("start")}
        program.until(lambda: running <= {line.name for line in jobs.told("end")}, "end of what ran")
        time.sleep(FULL_FOR_S)  # many leases: what ran keeps its holder, and its outcome is kept for later

    after = jobs.ask(lambda client: enqueue_until(client, refused=False))
    names = [*before, *during, *after]
    program.until(lambda: all_done(jobs, len(names)), "all jobs done")
    starts = [line.name for line in jobs.told("start")]
    print(f"{len(names)} jobs, {len(starts) - len(names)} run twice, {len(during)} taken while it filled up")
    assert set(starts) == set(names)
    assert "Traceback" not in program.log
    assert program.stop() == 0
    program.assert_nothing_left()


def test_an_owner_killed_while_its_disk_is_full_is_back_when_there_is_room(
    fleet: Fleets, medium: Medium
) -> None:
    jobs = Telling(fleet)
    program = started(fleet, data=str(medium.folder / "data"))
    names = [f"job-{number}" for number in range(100)]
    jobs.enqueue((name, 0.2) for name in names)
    jobs.until_told(program, "start", 20)

    with medium.full():
        program.owner_process().kill()
        program.says("the disk is full")
        program.until(lambda: program.log.count("owner ready") == 2, "owner without room")

    program.until(lambda: all_done(jobs, len(names)), "all jobs done")
    assert {line.name for line in jobs.told("start")} == set(names)
    assert program.stop() == 0
    program.assert_nothing_left()


def test_an_owner_that_finds_no_room_at_its_start_says_so_in_one_line(fleet: Fleets, medium: Medium) -> None:
    Telling(fleet)
    with medium.full():
        program = fleet.start("app", "--embedded", "--data", str(medium.folder / "data"), "--procs", "1")
        assert program.wait() == 1, program.log
    assert program.log.count(str(medium.folder / "data")) == 1, program.log
    assert "No space left" in program.log or "disk is full" in program.log
    assert "Traceback" not in program.log
    program.assert_nothing_left()


@pytest.mark.parametrize("what", ["--pidfile", "--control"])
def test_a_file_of_the_supervisor_that_finds_no_room_is_named_in_one_line(
    fleet: Fleets, medium: Medium, what: str
) -> None:
    Telling(fleet)
    path = medium.folder / "it"
    control = path if what == "--control" else None
    with medium.full():
        options = ("app", "--embedded", "--data", ":memory:", "--procs", "1")
        program = fleet.start(*options, *(() if what == "--control" else (what, str(path))), control=control)
        assert program.wait() == 1, program.log
    assert program.log.count(f"{path}") == 1, program.log
    assert what in program.log
    assert "No space left" in program.log
    assert "Traceback" not in program.log
    assert not path.exists()
    program.assert_nothing_left()


def test_a_runtime_folder_without_room_is_named_in_one_line(fleet: Fleets, medium: Medium) -> None:
    Telling(fleet)
    with medium.full():
        program = fleet.start(
            *("app", "--embedded", "--data", ":memory:", "--procs", "1"),
            env={"XDG_RUNTIME_DIR": str(medium.folder)},
        )
        assert program.wait() == 1, program.log
    assert program.log.count(str(medium.folder)) == 1, program.log
    assert "No space left" in program.log
    assert "Traceback" not in program.log


def test_a_runtime_folder_that_fills_up_later_disturbs_nothing(fleet: Fleets, medium: Medium) -> None:
    jobs = Telling(fleet)
    program = fleet.start(
        *("app", "--embedded", "--data", "data", "--procs", "2"), env={"XDG_RUNTIME_DIR": str(medium.folder)}
    )
    program.until_serving(2)
    names = [f"job-{number}" for number in range(200)]
    with medium.full():
        jobs.enqueue((name, 0.01) for name in names)
        jobs.until_told(program, "end", len(names))
        (worker, *_) = program.ready_workers()
        os.kill(worker["pid"], signal.SIGKILL)
        program.until(lambda: worker["pid"] not in {one["pid"] for one in program.workers()}, "death")
        program.until_serving(2)
    jobs.assert_each_ran_once(names)
    assert program.stop() == 0
    program.assert_nothing_left()


@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_output_to_a_full_device_disturbs_nothing(fleet: Fleets, stream: str) -> None:
    jobs = Telling(fleet)
    full = Path("/dev/full")
    program = fleet.start(
        *("app", "--embedded", "--data", "data", "--procs", "2"),
        out=full if stream != "stderr" else None,
        err=full if stream != "stdout" else None,
    )
    program.until_serving(2)
    names = [f"job-{number}" for number in range(200)]
    jobs.enqueue((name, 0.0) for name in names)
    jobs.until_told(program, "end", len(names))
    jobs.assert_each_ran_once(names)
    program.send(signal.SIGUSR1)
    assert program.stop() == 0
    program.assert_nothing_left()


def test_the_log_comes_back_when_its_medium_has_room_again(fleet: Fleets, medium: Medium) -> None:
    jobs = Telling(fleet)
    log = medium.folder / "log"
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "2", err=log)
    program.until_serving(2)
    with medium.full():
        program.send(signal.SIGUSR1)  # writes pages
        program.until(lambda: log.stat().st_size % PAGE == 0, "line that did not fit")
        jobs.enqueue([("job", 0.0)])
        jobs.until_told(program, "end", 1)
    program.send(signal.SIGUSR2)
    program.says("quiet")
    program.says("log lines were lost")
    assert program.stop() == 0
    assert "stopped: SIGTERM received" in program.log


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("app", "--check"), ("ctl", "status")], ids=" ".join
)
def test_a_command_that_cannot_print_says_so(fleet: Fleets, words: tuple[str, ...]) -> None:
    Telling(fleet)
    program = started(fleet) if words[0] == "ctl" else None
    where = {} if program is None else {"ISTOS_WORKER_CONTROL": str(program.control)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "istos_worker.cli.worker", *words],
            env=clean_env(fleet.runtime, **where),
            cwd=fleet.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONG_S,
            check=False,
        )
    print(done.returncode, done.stderr)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "No space left" in done.stderr
    if program is not None:
        assert program.stop() == 0
