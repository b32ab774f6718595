"""What a crash, a freeze, a drain or a lost owner may cost a job: nothing. Whole fleets, as users run them.

`ISTOS_LONG=1` runs the sizes of the promise (a thousand jobs, twenty kills, 100,000 failures) instead of small ones.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest

from istos_worker.client import Client
from supervisor.control_client import ask
from tests.fixtures.fleets import Fleets, RunningFleet
from tests.fixtures.owners import Owners
from tests.fixtures.programs import LONG_S, Program, free_endpoint

pytestmark = pytest.mark.crash

T = TypeVar("T")

LONG = bool(os.environ.get("ISTOS_LONG"))
QUEUE = "jobs/work"
LEASE_S = 1.0
SLOTS = 4

APP = f"""
import asyncio, ctypes, os, signal, time
from pathlib import Path
from istos_worker import App

app = App()
app.queue("{QUEUE}", keep_results=True, lease_s={LEASE_S}, retry_backoff_s=0.01, max_attempts=2)


def tell(what, name, attempt):
    with open("told", "a") as told:  # one write each: lines of several processes stay whole
        told.write(f"{{what}} {{name}} {{os.getpid()}} {{attempt}} {{time.monotonic()}}\\n")


@app.worker("{QUEUE}")
async def work(job, ctx):
    what, name, argument = job
    tell("start", name, ctx.attempt)
    match what:
        case "hold":
            while not Path(argument).exists():
                await asyncio.sleep(0.01)
        case "sleep":
            await asyncio.sleep(argument)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            raise ValueError(name)
        case "hold the interpreter":
            ctypes.PyDLL(None).usleep(int(argument * 1e6))  # PyDLL keeps the GIL
    tell("end", name, ctx.attempt)
    return [os.getpid(), ctx.attempt]
"""


class Line(NamedTuple):
    what: str
    name: str
    pid: int
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class House:
    """An application, its fleets, and what its jobs told."""

    fleets: Fleets
    owners: Owners
    folder: Path

    def fleet(self, *options: str, procs: int = 1) -> RunningFleet:
        return self.fleets.start("app", "--procs", str(procs), "--concurrency", str(SLOTS), *options)

    def embedded(self, *options: str, procs: int = 1) -> RunningFleet:
        program = self.fleet("--embedded", "--data", "data", *options, procs=procs)
        program.until_serving(procs)
        return program

    def owner(self, *options: str) -> Program:
        here = self.folder / f"owner-{len(self.owners._started)}"
        here.mkdir()
        (here / "app.py").write_text(APP)
        return self.owners.start(storage=f"sqlite:///{self.folder}/queue.db", arguments=("app", *options))

    @property
    def go(self) -> Path:
        """Jobs that hold end when it is there."""
        return self.folder / "go"

    def told(self, what: str, names: Iterable[str] | None = None) -> list[Line]:
        path = self.folder / "told"
        text = path.read_text() if path.exists() else ""
        rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        lines = [Line(row[0], row[1], int(row[2]), int(row[3]), float(row[4])) for row in rows]
        wanted = None if names is None else set(names)
        return [line for line in lines if line.what == what and (wanted is None or line.name in wanted)]

    def until_told(
        self, program: Program, what: str, number: int, names: Iterable[str] | None = None
    ) -> list[Line]:
        return program.until(
            lambda: found if len(found := self.told(what, names)) >= number else None,
            f"{number} times {what}",
        )

    def enqueue(self, jobs: list[list[Any]]) -> list[str]:
        async def work(client: Client) -> list[str]:
            return list(await client.enqueue_many(QUEUE, jobs, timeout_s=LONG_S))

        return self.ask(work)

    def holding(self, *names: str) -> list[str]:
        return self.enqueue([["hold", name, str(self.go)] for name in names])

    def results(self, job_ids: Iterable[str]) -> list[tuple[str, Any]]:
        async def work(client: Client) -> list[tuple[str, Any]]:
            found = [await client.result(QUEUE, one, wait_s=LONG_S, timeout_s=LONG_S) for one in job_ids]
            return [(one["state"], one["result"]) for one in found]

        return self.ask(work)

    def counts(self) -> dict[str, int]:
        async def work(client: Client) -> dict[str, int]:
            return dict((await client.stats(QUEUE, timeout_s=LONG_S))["counts"])

        return self.ask(work)

    def resumed_at(self, program: Program, after: float) -> float:
        """When the first job started that was claimed after that moment: what had been claimed before it starts
        within 50 ms."""
        return program.until(
            lambda: min((line.at for line in self.told("start") if line.at > after + 0.1), default=None),
            "start",
        )

    def ask(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with Client(self.fleets.network) as client:
                return await work(client)

        return asyncio.run(main())


@pytest.fixture
def house(fleet: Fleets, owner: Owners, tmp_path: Path) -> House:
    fleet.write("app", APP)
    return House(fleet, owner, tmp_path)


def pid_of(lines: list[Line]) -> int:
    (pid,) = {line.pid for line in lines}
    return pid


def test_jobs_of_a_killed_worker_start_again_elsewhere_and_no_other_is_charged(house: House) -> None:
    program = house.embedded(procs=1)
    mine = [f"mine-{number}" for number in range(SLOTS)]
    ids = house.holding(*mine)
    victim = pid_of(house.until_told(program, "start", SLOTS))
    assert ask(program.control, "scale", procs=2)["ok"]
    program.until_serving(2)
    others = house.holding("other-0", "other-1")
    house.until_told(program, "start", 2, ["other-0", "other-1"])

    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    starts = house.until_told(program, "start", 2 * SLOTS, mine)[SLOTS:]
    house.go.touch()

    print("kill to second start:", max(line.at for line in starts) - killed_at)
    assert {line.name for line in starts} == set(mine)
    assert victim not in {line.pid for line in starts}
    assert [(state, result[1]) for state, result in house.results(ids)] == [("done", 2)] * SLOTS
    assert [(state, result[1]) for state, result in house.results(others)] == [("done", 1)] * 2
    (obituary,) = [line for line in program.log.splitlines() if f"gone: pid {victim}," in line]
    assert "SIGKILL" in obituary
    assert all(f"{QUEUE}/{job_id}" in obituary for job_id in ids)
    assert program.stop() == 0


def test_a_job_that_kills_its_workers_is_buried_and_its_neighbours_finish(house: House) -> None:
    program = house.embedded(procs=2)
    healthy = [["sleep", f"healthy-{number}", 0.05] for number in range(20)]

    ids = house.enqueue([*healthy[:10], ["die", "killer", None], *healthy[10:]])
    killer = ids.pop(10)

    assert {state for state, _ in house.results(ids)} == {"done"}
    assert house.results([killer]) == [("dead", None)]

    async def letters(client: Client) -> list[Any]:
        return list(await client.dead_letters(QUEUE))

    (letter,) = house.ask(letters)
    assert letter["job_id"] == killer
    assert "SIGKILL" in letter["last_error"]
    assert len(house.told("start", ["killer"])) == 3
    assert program.stop() == 0


def to_supervisor(program: RunningFleet) -> None:
    program.send(signal.SIGTERM)


def to_the_group(program: RunningFleet) -> None:
    os.killpg(program.pid, signal.SIGTERM)


def twice(program: RunningFleet) -> None:
    to_the_group(program)
    program.send(signal.SIGTERM)
    to_the_group(program)


@pytest.mark.parametrize("stop", [to_supervisor, to_the_group, twice])
def test_term_lets_what_runs_finish_and_claims_nothing_more(
    house: House, stop: Callable[[RunningFleet], None]
) -> None:
    house.owner()
    program = house.fleet(procs=2)
    program.until_serving(2)
    running = house.holding(*(f"running-{number}" for number in range(2 * SLOTS)))
    house.until_told(program, "start", 2 * SLOTS)
    waiting = house.holding("waiting-0", "waiting-1")

    stop(program)
    program.until(lambda: {one["stage"] for one in program.workers()} == {"leaving"} or None, "drain")
    house.go.touch()

    assert program.wait() == 0, program.log
    assert [(state, result[1]) for state, result in house.results(running)] == [("done", 1)] * 2 * SLOTS
    assert not [line for line in house.told("start") if line.name.startswith("waiting")]
    assert house.counts()["ready"] == len(waiting)
    program.assert_nothing_left()


def test_an_idle_fleet_leaves_at_once(house: House) -> None:
    owner = house.owner()
    program = house.fleet(procs=2)
    program.until_serving(2)
    began = time.monotonic()

    assert program.stop() == 0

    took_s = time.monotonic() - began
    print("idle stop:", took_s)
    assert took_s < 5
    assert owner.process.poll() is None


def test_past_the_deadline_jobs_are_back_with_the_attempts_they_had(house: House) -> None:
    house.owner()
    program = house.fleet("--drain-timeout", "2500ms", procs=2)
    ids = house.holding(*(f"job-{number}" for number in range(2 * SLOTS)))
    house.until_told(program, "start", 2 * SLOTS)

    to_the_group(program)

    assert program.wait() == 0, program.log
    assert house.counts()["ready"] == 2 * SLOTS
    house.go.touch()
    again = house.fleet(procs=1)
    assert [(state, result[1]) for state, result in house.results(ids)] == [("done", 1)] * 2 * SLOTS
    assert again.stop() == 0


def test_the_second_holders_result_stands_when_a_frozen_worker_wakes_up(house: House) -> None:
    program = house.embedded(procs=1)
    (job_id,) = house.enqueue([["sleep", "frozen", 0.5]])
    frozen = pid_of(house.until_told(program, "start", 1))
    os.kill(frozen, signal.SIGSTOP)
    assert ask(program.control, "scale", procs=2)["ok"]
    house.until_told(program, "end", 1)
    stands = house.results([job_id])

    os.kill(frozen, signal.SIGCONT)
    program.until(lambda: frozen in {one["pid"] for one in program.ready_workers()} or None, "awake worker")
    house.results(house.enqueue([["sleep", f"later-{number}", 0.01] for number in range(20)]))

    assert stands[0][0] == "done"
    assert stands[0][1][0] != frozen
    assert house.results([job_id]) == stands
    assert program.stop() == 0


def test_jobs_of_many_leases_run_once_even_one_that_holds_the_interpreter(house: House) -> None:
    program = house.embedded(procs=2)
    leases = (10, 6) if LONG else (4, 3)
    ids = house.enqueue(
        [["sleep", "patient", leases[0] * LEASE_S], ["hold the interpreter", "greedy", leases[1] * LEASE_S]]
    )

    assert [(state, result[1]) for state, result in house.results(ids)] == [("done", 1)] * 2
    assert len(house.told("start")) == 2
    assert program.stop() == 0


def test_no_short_job_waits_for_a_long_one(house: House) -> None:
    program = house.embedded("--concurrency", "2", procs=1)
    long = house.holding("long")
    house.until_told(program, "start", 1)

    short = house.enqueue([["sleep", f"short-{number}", 0.01] for number in range(1000 if LONG else 100)])

    assert {state for state, _ in house.results(short)} == {"done"}
    assert house.told("end", ["long"]) == []
    starts = [line.at for line in house.told("start")[1:]]
    print("longest pause between short jobs:", max(b - a for a, b in itertools.pairwise(starts)))
    house.go.touch()
    assert house.results(long)[0][0] == "done"
    assert program.stop() == 0


@pytest.mark.parametrize("where", ["embedded", "elsewhere"])
def test_an_owner_killed_again_and_again_loses_nothing_and_holds_up_little(house: House, where: str) -> None:
    kills = 20 if LONG else 2
    if where == "embedded":
        program, owner, endpoint = house.embedded(procs=2), None, ""
    else:
        endpoint = free_endpoint()
        owner = house.owner("--listen", endpoint)
        program = house.fleet("--connect", endpoint, procs=2)
    ids = house.enqueue([["sleep", f"job-{number}", 0.05] for number in range(150 * kills)])
    gaps: list[float] = []
    for _ in range(kills):
        house.until_told(program, "end", len(house.told("end")) + 40)
        killed_at = time.monotonic()
        if owner is None:
            psutil.Process(program.owner_process().pid).kill()
        else:
            owner.process.kill()
            owner.process.wait()
            owner = house.owner("--listen", endpoint)
        gaps.append(house.resumed_at(program, killed_at) - killed_at)

    assert {state for state, _ in house.results(ids)} == {"done"}
    print("consuming again after:", sorted(round(gap, 2) for gap in gaps), statistics.median(gaps))
    assert max(gaps) < LONG_S / 2
    assert program.stop() == 0


def test_the_memory_of_a_worker_stays_flat_over_failing_jobs(house: House) -> None:
    total, batch = (50_000, 5000) if LONG else (1600, 200)  # each fails twice
    program = house.embedded("--log-level", "warning", procs=1)
    (worker,) = program.until_serving(1)
    sizes: list[float] = []
    for first in range(0, total, batch):
        fail = [["fail", f"job-{first + number}", None] for number in range(batch)]
        for job_id in house.enqueue(fail)[-1:]:
            assert house.results([job_id]) == [("dead", None)]
        sizes.append(psutil.Process(worker["pid"]).memory_info().rss / 2**20)

    print("MiB:", [round(size, 1) for size in sizes])
    assert sizes[-1] - sizes[len(sizes) // 4] < 8
    assert program.stop() == 0
