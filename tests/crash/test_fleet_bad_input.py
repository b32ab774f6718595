"""A mistake gets one clear line, the user's own traceback where it is theirs, and the documented exit code."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.fixtures.fleets import Fleets

pytestmark = pytest.mark.crash

GOOD = """
from istos_worker import App
app = App()
app.queue("jobs/a")

@app.worker("jobs/a")
def work(job):
    return job
"""

TARGETS = [
    ("missing", None, "no module named 'missing'"),
    ("app.py", GOOD, "is a module, not a file"),
    ("empty", "x = 1", "has no App"),
    ("several", "from istos_worker import App\na = App()\nb = App()", "several:a or several:b"),
    ("app:nothing", GOOD, "has no attribute 'nothing'; it has app:app"),
    ("app:App.__name__", GOOD, "is a str, not an App"),
    ("idle", "from istos_worker import App\napp = App()\napp.queue('jobs/a')", "declares no worker"),
    ("broken", "def f(:", "SyntaxError"),
    ("failing", "def deep():\n    raise ValueError('of theirs')\ndeep()", "ValueError: of theirs"),
    ("importing", "import not_there_at_all", "No module named 'not_there_at_all'"),
    ("leaving", "raise SystemExit(0)", "SystemExit: 0"),
]


@pytest.mark.parametrize(
    "mode", [(), ("--embedded",), ("--solo",), ("--check",)], ids=lambda mode: "".join(mode)
)
@pytest.mark.parametrize(("target", "source", "said"), TARGETS, ids=[row[0] for row in TARGETS])
def test_a_target_that_cannot_be_used_exits_4_and_says_why_once(
    fleet: Fleets, target: str, source: str | None, said: str, mode: tuple[str, ...]
) -> None:
    if source is not None:
        fleet.write(target.partition(":")[0].removesuffix(".py"), source)

    program = fleet.start(target, "--data", ":memory:", *mode)

    assert program.wait() == 4, program.log
    assert program.log.count(said) == 1, program.log
    assert "istos_worker/fleet" not in program.log
    assert "supervisor/" not in program.log
    program.assert_nothing_left()


@pytest.mark.parametrize("mode", ["--embedded", "--solo", "--check"])
def test_a_queue_that_two_apps_declare_is_named(fleet: Fleets, mode: str) -> None:
    fleet.write("app", GOOD)
    fleet.write("other", GOOD.replace('@app.worker("jobs/a")', '@app.worker("jobs/b")'))

    program = fleet.start("app", "other", "--data", ":memory:", "--embedded", mode)

    assert program.wait() == 4, program.log
    assert program.log.count("two of the apps declare the queue 'jobs/a'") == 1, program.log
    assert "Traceback" not in program.log


def test_a_queue_that_nobody_handles_is_named(fleet: Fleets) -> None:
    fleet.write("app", GOOD)
    program = fleet.start("app", "--queue", "jobs/b")
    assert program.wait() == 4
    assert "no worker for 'jobs/b'; there are: jobs/a" in program.log


def test_a_data_folder_that_cannot_be_written_is_named(fleet: Fleets, tmp_path: Path) -> None:
    fleet.write("app", GOOD)
    (tmp_path / "file").write_text("in the way")
    program = fleet.start("app", "--embedded", "--data", str(tmp_path / "file" / "data"))
    assert program.wait() == 1, program.log
    assert program.log.count(str(tmp_path / "file")) == 1, program.log
    assert "Traceback" not in program.log
    program.assert_nothing_left()


def test_a_port_in_use_by_the_owner_is_named(fleet: Fleets) -> None:
    fleet.write("app", GOOD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        program = fleet.start("app", "--embedded", "--data", ":memory:", "--listen", endpoint)
        assert program.wait() == 1, program.log
    assert endpoint in program.log
    assert "Traceback" not in program.log
    program.assert_nothing_left()


def test_a_port_in_use_for_metrics_is_named(fleet: Fleets) -> None:
    fleet.write("app", GOOD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = fleet.start("app", "--metrics", f"127.0.0.1:{port}")
        assert program.wait() == 1, program.log
    (said,) = [line for line in program.log.splitlines() if "ERROR" in line]
    assert said.endswith(f"not started: --metrics 127.0.0.1:{port}: Address already in use")
    assert "Traceback" not in program.log
    program.assert_nothing_left()


def test_a_second_start_with_one_pidfile_fails_at_once_and_leaves_the_first_alone(
    fleet: Fleets, tmp_path: Path
) -> None:
    fleet.write("app", GOOD)
    pidfile = tmp_path / "pid"
    options = ("app", "--embedded", "--data", "data", "--procs", "1", "--pidfile", str(pidfile))
    first = fleet.start(*options)
    first.until_serving(1)
    before = {one.pid for one in first.family()}

    second = fleet.start(*options)

    assert second.wait() == 1, second.log
    (said,) = [line for line in second.log.splitlines() if "ERROR" in line]
    assert said.endswith(f"not started: --pidfile {pidfile}: already running with pid {first.pid}")
    assert "started\n" not in second.log.replace(said, "")
    assert pidfile.read_text() == f"{first.pid}\n"
    assert {one.pid for one in first.family()} == before
    assert len(first.ready_workers()) == 1
    assert first.stop() == 0
    assert not pidfile.exists()


def test_why_the_owner_gave_up_is_said_before_the_fleet_stops(fleet: Fleets, tmp_path: Path) -> None:
    fleet.write("app", GOOD)
    (tmp_path / "file").write_text("in the way")
    program = fleet.start("app", "--embedded", "--data", str(tmp_path / "file" / "data"))
    assert program.wait() == 1, program.log
    assert program.log.index("the owner cannot start") < program.log.index("stopping:")
