"""The main job on real processes: jobs run, the fleet is seen and spoken to, and leaves in order."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
import urllib.request
from functools import partial
from pathlib import Path

import psutil
import pytest

from istos_worker.client import Client
from supervisor.control_client import ask
from tests.fixtures.fleet_jobs import APP, hold_a_job, result_of, run_jobs, with_client
from tests.fixtures.fleets import Fleets, RunningFleet, titles
from tests.fixtures.owners import Owners
from tests.fixtures.programs import LONG_S, free_endpoint

pytestmark = pytest.mark.crash


@pytest.fixture
def running(fleet: Fleets) -> RunningFleet:
    """Two workers and an embedded owner."""
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "2", "--concurrency", "4")
    program.until_serving(2)
    return program


def test_jobs_run_and_the_fleet_shows_itself_and_leaves(fleet: Fleets, running: RunningFleet) -> None:
    results = run_jobs(fleet, 50)

    assert [result[0] for result in results] == list(range(50))
    assert {result[2] for result in results} == {"2"}
    assert {result[3] for result in results} == {"1"}
    assert {result[1] for result in results} <= {"0", "1"}
    running.until(
        lambda: (
            {
                "istos-worker: zygote gen 1",
                "istos-worker: owner",
                "istos-worker: worker 0 gen 1 [0/6 busy]",
                "istos-worker: worker 1 gen 1 [0/6 busy]",
            }
            <= set(titles(running.family()))
        ),
        "titles",
    )
    assert sum(worker["done"] for worker in running.workers()) == 50
    assert (running.status() or {})["totals"]["done"] == 50
    assert ask(running.control, "scale", procs=1)["ok"]
    running.until(lambda: len(running.workers()) == 1, "one worker")
    assert (running.status() or {})["totals"]["done"] == 50
    assert running.stop() == 0
    running.assert_nothing_left()


def test_ctl_scales_quiets_and_stops(fleet: Fleets, running: RunningFleet) -> None:
    assert ask(running.control, "scale", procs=3)["ok"]
    running.until_serving(3)
    assert ask(running.control, "scale", procs=1)["ok"]
    running.until(lambda: len(running.workers()) == 1, "one worker")
    assert ask(running.control, "quiet")["ok"]
    assert ask(running.control, "resume")["ok"]
    assert len(run_jobs(fleet, 5)) == 5
    assert ask(running.control, "stop")["ok"]
    assert running.wait() == 0
    running.assert_nothing_left()


def test_a_killed_workers_job_runs_again_and_the_obituary_names_it(
    fleet: Fleets, running: RunningFleet, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    job_id = hold_a_job(fleet, running, path)
    holder = int(Path(f"{path}.starts").read_text().split()[0])

    (found,) = [one for one in running.family() if one.pid == holder]
    found.kill()
    running.until(lambda: len(Path(f"{path}.starts").read_text().splitlines()) == 2, "second start")
    path.touch()

    assert result_of(fleet, job_id)["state"] == "done"
    running.says(f"jobs/b/{job_id}")
    running.until_serving(2)
    assert running.stop() == 0


def test_an_owner_elsewhere_is_told_of_a_death_by_the_replacement(
    fleet: Fleets, owner: Owners, tmp_path: Path
) -> None:
    owner.start("jobs/a", "jobs/b")
    fleet.write("app", APP)
    program = fleet.start("app", "--procs", "1")
    path = tmp_path / "go"
    job_id = hold_a_job(fleet, program, path)

    psutil.Process(int(Path(f"{path}.starts").read_text().split()[0])).kill()
    program.until(lambda: len(Path(f"{path}.starts").read_text().splitlines()) == 2, "second start")
    path.touch()

    assert result_of(fleet, job_id)["state"] in ("done", "unknown")  # this owner keeps no results
    assert "worker lost: killed by SIGKILL" in Path(f"{path}.starts").read_text()
    assert program.stop() == 0


def test_term_lets_a_running_job_finish(fleet: Fleets, running: RunningFleet, tmp_path: Path) -> None:
    path = tmp_path / "go"
    hold_a_job(fleet, running, path)
    running.send(signal.SIGTERM)
    running.says("leaving")
    path.touch()
    assert running.wait() == 0
    assert len(Path(f"{path}.starts").read_text().splitlines()) == 1


def test_a_job_handed_back_at_the_deadline_is_not_charged(fleet: Fleets, tmp_path: Path) -> None:
    fleet.write("app", APP)
    options = ("app", "--embedded", "--data", "data", "--procs", "1", "--drain-timeout", "1s")
    program = fleet.start(*options)
    path = tmp_path / "go"
    job_id = hold_a_job(fleet, program, path)
    assert program.stop() == 0, program.log
    path.touch()

    again = fleet.start(*options)

    assert result_of(fleet, job_id) == {"state": "done", "result": 1}
    assert again.stop() == 0


def test_the_owner_killed_under_a_running_job_changes_nothing(
    fleet: Fleets, running: RunningFleet, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    job_id = hold_a_job(fleet, running, path)
    before = running.owner_process()
    before.kill()
    running.until(lambda: (now := running.status()) and now["companion"]["restarts"] == 1, "new owner")
    running.until_serving(2)
    path.touch()
    assert result_of(fleet, job_id)["state"] == "done"
    assert len(Path(f"{path}.starts").read_text().splitlines()) == 1
    assert running.stop() == 0
    running.assert_nothing_left()


def test_a_killed_supervisor_leaves_nothing_behind(running: RunningFleet) -> None:
    running.send(signal.SIGKILL)
    running.wait()
    running.assert_nothing_left()


def test_hup_brings_the_new_code_and_a_broken_one_changes_nothing(
    fleet: Fleets, running: RunningFleet
) -> None:
    fleet.write("app", APP.replace('"ISTOS_WORKER_GENERATION"]', '"ISTOS_WORKER_GENERATION"] + " new"'))
    assert ask(running.control, "reload", wait=True, wait_s=LONG_S)["ok"]
    assert {result[3] for result in run_jobs(fleet, 20)} == {"2 new"}

    fleet.write("app", "syntax error here")
    answer = ask(running.control, "reload", wait=True, wait_s=LONG_S)
    assert not answer["ok"]
    assert "SyntaxError" in answer["error"]
    assert {result[3] for result in run_jobs(fleet, 20)} == {"2 new"}
    assert running.stop() == 0


def test_burst_exits_0_when_the_queues_are_empty(fleet: Fleets) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "1")
    program.until_serving(1)
    ask(program.control, "quiet")

    async def work(client: Client) -> None:
        await client.enqueue_many("jobs/a", range(200))

    asyncio.run(with_client(fleet, work))
    assert program.stop() == 0

    burst = fleet.start("app", "--embedded", "--data", "data", "--procs", "2", "--burst")

    assert burst.wait() == 0, burst.log
    burst.assert_nothing_left()
    after = fleet.start("app", "--embedded", "--data", "data", "--procs", "1")

    async def counts(client: Client) -> dict[str, int]:
        return dict((await client.stats("jobs/a", timeout_s=LONG_S))["counts"])

    found = asyncio.run(with_client(fleet, counts))
    assert (found["ready"], found["leased"], found["done"]) == (0, 0, 200)
    assert after.stop() == 0


def test_solo_runs_jobs_in_one_process_and_owns_the_queues(fleet: Fleets) -> None:
    fleet.write("app", APP.replace('os.environ["ISTOS_WORKER_INDEX"]', "os.getpid()"))
    program = fleet.start("app", "--solo", "--data", ":memory:")
    assert {result[1] for result in run_jobs(fleet, 10)} == {program.pid}
    assert program.family() == []
    program.send(signal.SIGINT)
    assert program.wait() == 0, program.log


def test_check_prints_queues_handlers_slots_and_deadlines(fleet: Fleets) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--check", "--procs", "3", "--concurrency", "5", "--concurrency", "jobs/b=7")
    assert program.wait() == 0, program.log
    assert "queue jobs/a (declared here): 5 slots a process" in program.out
    assert "queue jobs/b (declared here): 7 slots a process" in program.out
    assert "handler work" in program.out
    assert "3 processes with 12 slots each: 36 jobs at the same time" in program.out
    assert "at 25s workers are killed" in program.out


@pytest.mark.parametrize("how", ["--check", "--solo", "--embedded"])
def test_a_handler_that_no_job_fits_is_refused_at_the_door(fleet: Fleets, how: str) -> None:
    fleet.write(
        "app",
        "from istos_worker import App\napp = App()\napp.queue('jobs/a')\n"
        "@app.worker('jobs/a')\ndef work(job, other): ...\n",
    )
    program = fleet.start("app", how, "--data", ":memory:", "--procs", "1")
    assert program.wait() == 4, program.log
    assert "nothing supplies the parameter 'other' of work" in program.log
    assert "Traceback" not in program.log


def test_an_owner_that_is_away_is_no_failure(fleet: Fleets) -> None:
    fleet.write("app", APP)
    workers = fleet.start("app", "--procs", "1")
    workers.until(lambda: [one for one in workers.workers() if one["stage"] == "ready"], "ready worker")
    workers.says("not consuming")
    assert workers.ready_workers() == []

    owner = fleet.start("app", "--embedded", "--data", ":memory:", "--procs", "1")

    workers.until_serving(1)
    assert len(run_jobs(fleet, 5)) == 5
    assert workers.stop() == 0
    assert owner.stop() == 0


def test_a_dead_endpoint_is_named_before_zenoh_gives_up(fleet: Fleets) -> None:
    fleet.write("app", APP)
    endpoint = free_endpoint()
    program = fleet.start("app", "--procs", "1", "--connect", endpoint)
    program.says("zygote started")
    began = time.monotonic()
    program.says(f"still trying to reach {endpoint}")
    print(f"said {time.monotonic() - began:.1f} s after the zygote's start")
    assert "cannot" not in program.log  # what Zenoh says when it has given up for the first time, after 3 s
    program.until(lambda: [one for one in program.workers() if one["stage"] == "ready"], "ready worker")
    assert program.ready_workers() == []
    assert program.stop() == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def page_of(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return str(answer.read().decode())


def test_metrics_and_probes(fleet: Fleets) -> None:
    fleet.write("app", APP)
    port = free_port()
    get = partial(page_of, port)
    program = fleet.start(
        "app", "--embedded", "--data", ":memory:", "--procs", "2", "--metrics", f"127.0.0.1:{port}"
    )
    program.until_serving(2)
    run_jobs(fleet, 30)

    program.until(lambda: 'istos_worker_jobs_succeeded_total{queue="jobs/a"} 30' in get("/metrics"), "metric")
    shown = get("/metrics")
    assert 'istos_worker_processes{stage="ready"} 2' in shown
    assert "istos_worker_fleet_jobs_total 30" in shown
    assert get("/livez")
    assert get("/readyz")
    program.ready_workers()
    assert program.stop() == 0


def test_solo_serves_metrics_and_probes_too(fleet: Fleets) -> None:
    fleet.write("app", APP.replace('os.environ["ISTOS_WORKER_INDEX"]', "os.getpid()"))
    port = free_port()
    get = partial(page_of, port)
    program = fleet.start("app", "--solo", "--data", ":memory:", "--metrics", f"127.0.0.1:{port}")
    run_jobs(fleet, 10)

    program.until(lambda: 'istos_worker_jobs_succeeded_total{queue="jobs/a"} 10' in get("/metrics"), "metric")
    shown = get("/metrics")
    assert 'istos_worker_processes{stage="ready"} 1' in shown
    assert 'istos_worker_memory_bytes{slot="0"} ' in shown
    assert "istos_worker_fleet_jobs_total 10" in shown
    assert get("/livez")
    assert get("/readyz")
    program.send(signal.SIGINT)
    assert program.wait() == 0, program.log


def test_solo_says_which_port_it_cannot_have(fleet: Fleets) -> None:
    fleet.write("app", APP)
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        program = fleet.start("app", "--solo", "--data", ":memory:", "--metrics", where)
        assert program.wait() == 1
    assert f"--metrics {where}: Address already in use" in program.log


def test_json_logs_parse_and_carry_the_job(fleet: Fleets) -> None:
    fleet.write("app", APP.replace('"working on %s", job', '"working on %s %s", job, "x" * 9000'))
    program = fleet.start("app", "--embedded", "--data", ":memory:", "--procs", "2", "--log-format", "json")
    run_jobs(fleet, 40)
    assert program.stop() == 0

    lines = [json.loads(line) for line in program.log.splitlines()]

    of_jobs = [line for line in lines if line["message"].startswith("working on")]
    assert len(of_jobs) == 40
    assert all(line["job_id"] and line["queue"] == "jobs/a" for line in of_jobs)


RELAY = """
from istos_worker import App

app = App()
app.queue("jobs/relay", keep_results=True)


@app.worker("jobs/relay")
async def relay(job):
    return await app.enqueue("other/queue", job, timeout_s=30)
"""


def test_a_handler_reaches_queues_of_other_owners_also_after_its_own_owner_died(
    fleet: Fleets, owner: Owners
) -> None:
    owner.start("other/queue")
    fleet.write("app", RELAY)
    program = fleet.start("app", "--embedded", "--data", "data", "--procs", "1")
    program.until_serving(1)

    async def relay_one(client: Client) -> str:
        job_id = await client.enqueue("jobs/relay", "hello", timeout_s=LONG_S)
        ended = await client.result("jobs/relay", job_id, wait_s=LONG_S, timeout_s=LONG_S)
        assert ended["state"] == "done", ended
        found = await client.result("other/queue", ended["result"], timeout_s=LONG_S)
        return found["state"]

    assert asyncio.run(with_client(fleet, relay_one)) == "ready"
    program.owner_process().kill()
    assert asyncio.run(with_client(fleet, relay_one)) == "ready"
    assert program.stop() == 0


def test_reload_option_brings_changed_code(fleet: Fleets) -> None:
    fleet.write("app", APP)
    program = fleet.start("app", "--embedded", "--data", ":memory:", "--procs", "1", "--reload")
    program.until_serving(1)
    changed = APP.replace('"ISTOS_WORKER_GENERATION"]', '"ISTOS_WORKER_GENERATION"] + " new"')

    def reloaded() -> bool:
        fleet.write("app", changed)  # again, as the watcher may not have been there the first time
        workers = program.workers()
        return bool(workers) and all(one["generation"] > 1 for one in workers)

    program.until(lambda: reloaded() or None, "new generation")
    assert run_jobs(fleet, 1)[0][3].endswith(" new")
    assert program.stop() == 0
    program.assert_nothing_left()
