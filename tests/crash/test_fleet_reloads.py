"""Reloads under a stream of jobs: a slow import is waited for by nobody, a broken one changes nothing.

`ISTOS_LONG=1` runs the size of the promise: an import of 3 s, one worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from istos_worker.client import Client
from supervisor.control_client import ask
from tests.fixtures.fleets import Fleets, RunningFleet
from tests.fixtures.programs import LONG_S, clean_env
from tests.fixtures.telling import APP, QUEUE, Telling

pytestmark = pytest.mark.crash

LONG = bool(os.environ.get("ISTOS_LONG"))
IMPORT_S = 3.0 if LONG else 1.0
EVERY_S = 0.02
JOB_S = 0.01
SLOW_APP = f"import time\ntime.sleep({IMPORT_S})\n{APP}"


@dataclass
class Stream:
    """Jobs that come one after the other, from a thread of its own, until it is stopped."""

    jobs: Telling
    names: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with Client(self.jobs.fleets.network) as client:
            while not self.stopped.is_set():
                name = f"job-{len(self.names)}"
                await client.enqueue(QUEUE, [name, JOB_S], timeout_s=LONG_S)
                self.names.append(name)
                await asyncio.sleep(EVERY_S)


@contextmanager
def streaming(jobs: Telling) -> Iterator[Stream]:
    stream = Stream(jobs)
    thread = threading.Thread(target=stream.run)
    thread.start()
    try:
        yield stream
    finally:
        stream.stopped.set()
        thread.join()


def started(fleet: Fleets, *options: str) -> RunningFleet:
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "1", *options)
    program.until_serving(1)
    return program


def by_hup(program: RunningFleet) -> None:
    program.send(signal.SIGHUP)
    program.says("reloaded, generation 2")


def by_ctl(program: RunningFleet) -> None:
    assert ask(program.control, "reload", wait=True, wait_s=LONG_S)["ok"]


@pytest.mark.parametrize("reload", [by_hup, by_ctl])
def test_one_worker_reloads_a_slow_import_without_a_gap(
    fleet: Fleets, reload: Callable[[RunningFleet], None]
) -> None:
    jobs = Telling(fleet)
    fleet.write("app", SLOW_APP)
    program = started(fleet)
    with streaming(jobs) as stream:
        jobs.until_told(program, "end", 50)
        began = time.monotonic()
        reload(program)
        ended = time.monotonic()
        jobs.until_told(program, "end", len(jobs.told("end")) + 50)

    jobs.until_told(program, "end", len(stream.names))
    gap_s = jobs.longest_gap_s()
    print(f"reload took {ended - began:.2f} s, {len(stream.names)} jobs, longest gap {gap_s:.3f} s")
    jobs.assert_each_ran_once(stream.names)
    assert ended - began > IMPORT_S
    assert gap_s < 1.0
    assert len({line.pid for line in jobs.told("end")}) == 2
    assert program.stop() == 0
    program.assert_nothing_left()


BROKEN = {
    "a syntax error": ("def f(:\n", "SyntaxError"),
    "an import error": ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
    "an exception": ("def deep():\n    raise ValueError('of theirs')\ndeep()\n", "ValueError: of theirs"),
}


@pytest.mark.parametrize(("source", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_reload_of_broken_code_exits_1_with_its_traceback_and_the_old_workers_go_on(
    fleet: Fleets, source: str, said: str
) -> None:
    jobs = Telling(fleet)
    program = started(fleet)
    with streaming(jobs) as stream:
        (worker,) = {line.pid for line in jobs.until_told(program, "end", 50)}
        fleet.write("app", source)

        ctl = subprocess.run(
            [
                *(sys.executable, "-m", "istos_worker.cli.worker", "ctl"),
                *("--control", str(program.control), "reload", "--wait"),
            ],
            env=clean_env(fleet.runtime),
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

        jobs.until_told(program, "end", len(jobs.told("end")) + 50)
    jobs.until_told(program, "end", len(stream.names))
    print(f"exit {ctl.returncode}, {len(stream.names)} jobs, longest gap {jobs.longest_gap_s():.3f} s")
    assert ctl.returncode == 1
    assert said in ctl.stderr
    assert "app.py" in ctl.stderr
    assert "supervisor/" not in ctl.stderr
    assert program.log.count(said) == 1, program.log
    assert {line.pid for line in jobs.told("end")} == {worker}
    jobs.assert_each_ran_once(stream.names)
    assert program.stop() == 0
    program.assert_nothing_left()


DIES_AT_START = f"""
import os
os.register_at_fork(after_in_child=lambda: os._exit(9))
{APP}
"""


def test_a_reload_whose_first_worker_dies_at_start_exits_1_and_the_old_workers_go_on(fleet: Fleets) -> None:
    jobs = Telling(fleet)
    program = started(fleet)
    with streaming(jobs) as stream:
        (worker,) = {line.pid for line in jobs.until_told(program, "end", 50)}
        fleet.write("app", DIES_AT_START)
        answer = ask(program.control, "reload", wait=True, wait_s=LONG_S)
        jobs.until_told(program, "end", len(jobs.told("end")) + 50)

    jobs.until_told(program, "end", len(stream.names))
    assert not answer["ok"]
    assert "before it was ready" in answer["error"], answer
    assert {line.pid for line in jobs.told("end")} == {worker}
    jobs.assert_each_ran_once(stream.names)
    assert program.stop() == 0
    program.assert_nothing_left()
