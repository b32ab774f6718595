"""Reloads that succeed, fail, are killed half-way; recycling; what is offered to the outside."""

from __future__ import annotations

import os
import signal
import socket
import stat
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.control_client import NotRunning, ask

if TYPE_CHECKING:
    from tests.crash.supervisor.conftest import Fleet

pytestmark = pytest.mark.crash

NOTES_IMPORT = "import sys, os; note = sys.modules['__main__'].note; note('imported')\n"
ONLY_SLOT_0 = """
import sys
async def main(link):
    assert link.slot == 0
    return await sys.modules['__main__'].serve(link)
"""
DOES_THREE = """
async def main(link):
    async with link:
        link.ready()
        link.report(done=3, busy=0, slots=1)
"""
COUNTS = """
import asyncio
async def main(link):
    async with link:
        link.ready()
        async with asyncio.TaskGroup() as group:
            work = group.create_task(count(link))
            async for order in link.orders():
                if type(order).__name__ == "Drain":
                    work.cancel()
                    return 0
async def count(link):
    done = 0
    while True:
        await asyncio.sleep(0.005)
        done += 1
        link.report(done=done, busy=0, slots=1)
"""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("def f(:", "SyntaxError"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("1/0", "ZeroDivisionError"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("async def main(link): raise RuntimeError('cannot boot')", "RuntimeError: cannot boot"),
        ("import sys\nasync def main(link): link.give_up('bad settings', 2); sys.exit(1)", "bad settings"),
        ("import os\ndef fork(): raise OSError(11, 'no more')\nos.fork = fork", "no more"),
    ],
)
def test_a_reload_that_fails_touches_nothing_and_says_why(fleet: Fleet, broken: str, says: str) -> None:
    fleet.start(procs=2, control=str(fleet.directory / "control"))
    fleet.wait("ready", count=2)
    fleet.write_app(broken)

    answer = ask(fleet.directory / "control", "reload", wait=True)

    assert not answer["ok"]
    assert says in answer["error"] or says in fleet.log_text()
    assert not fleet.events("order", order="Drain")
    assert len(fleet.events("ready")) == 2
    assert status(fleet)["generation"] == 1
    fleet.write_app("")
    assert ask(fleet.directory / "control", "reload", wait=True)["ok"]
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_reload_replaces_one_at_a_time_new_before_old(fleet: Fleet) -> None:
    fleet.start(procs=3, control=str(fleet.directory / "control"))
    fleet.wait("ready", count=3)

    assert ask(fleet.directory / "control", "reload", wait=True) == {
        "ok": True,
        "error": None,
        "generation": 2,
    }

    fleet.wait("left", count=3)
    story = [one["event"] for one in fleet.events() if one["event"] in ("rising", "left")]
    assert story == ["rising"] * 3 + ["rising", "left"] * 3
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_the_first_generation_goes_on_when_the_second_cannot_fill_all_slots(fleet: Fleet) -> None:
    fleet.start(procs=2, control=str(fleet.directory / "control"))
    fleet.wait("ready", count=2)
    fleet.write_app(ONLY_SLOT_0)

    answer = ask(fleet.directory / "control", "reload", wait=True)

    assert "worker 1 of the new generation" in answer["error"]
    fleet.wait("ready", slot=0, generation=1, count=2)
    fleet.until(lambda: [one["generation"] for one in stages(fleet, "ready")] == [1, 1], what="roll-back")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_worker_of_the_new_generation_that_gives_up_undoes_the_reload_only(fleet: Fleet) -> None:
    fleet.start(procs=2, control=str(fleet.directory / "control"))
    fleet.wait("ready", count=2)
    gives_up = "if link.slot: link.give_up('bad port', 2); sys.exit(1)"
    fleet.write_app(ONLY_SLOT_0.replace("assert link.slot == 0", gives_up))

    answer = ask(fleet.directory / "control", "reload", wait=True)

    assert "worker 1 of the new generation" in answer["error"]
    assert "bad port" in fleet.log_text()
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


READY_ONCE = """
async def main(link):
    async with link:
        if not WAS_HERE.exists():
            WAS_HERE.touch()
            link.ready()
            return 1
        async for order in link.orders():
            if type(order).__name__ == "Drain":
                return 0
"""


def test_a_reload_takes_the_place_of_a_worker_that_never_becomes_ready(fleet: Fleet) -> None:
    was_here = f"WAS_HERE = __import__('pathlib').Path({str(fleet.directory / 'WAS_HERE')!r})\n"
    fleet.start(was_here + READY_ONCE, procs=1, control=str(fleet.directory / "control"))
    fleet.wait("born", count=2)  # the first one became ready and died
    fleet.write_app("")

    answer = ask(fleet.directory / "control", "reload", wait=True)

    assert answer["error"] is None
    fleet.until(
        lambda: [one["generation"] for one in status(fleet)["workers"]] == [2],
        what="one worker, of the new generation",
    )
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_reload_gets_its_turn_however_much_is_recycled(fleet: Fleet) -> None:
    fleet.start(
        COUNTS, procs=4, control=str(fleet.directory / "control"), recycling={"max_lifetime_s": 0.001}
    )
    fleet.wait("exit", count=4)

    assert ask(fleet.directory / "control", "reload", wait=True, wait_s=15.0)["ok"]

    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL])
def test_a_stop_while_a_reload_imports_leaves_nothing(fleet: Fleet, signum: int) -> None:
    fleet.start(procs=2)
    fleet.wait("ready", count=2)
    fleet.write_app(NOTES_IMPORT + "import time; time.sleep(3600)")
    fleet.signal(signal.SIGHUP)
    fleet.wait("imported")

    fleet.signal(signum)

    fleet.ends(-signum if signum == signal.SIGKILL else 0)
    assert len(fleet.events("left")) == 2


def test_a_new_zygote_killed_while_it_imports_fails_the_reload_only(fleet: Fleet) -> None:
    fleet.start(procs=1)
    fleet.wait("ready")
    fleet.write_app(NOTES_IMPORT + "import time; time.sleep(3600)")
    fleet.signal(signal.SIGHUP)

    os.kill(fleet.wait("imported")["pid"], signal.SIGKILL)

    fleet.wait_log("reload failed")
    assert not fleet.events("order")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_two_reloads_asked_for_at_once_are_answered_both(fleet: Fleet) -> None:
    fleet.start(procs=1, control=str(fleet.directory / "control"))
    fleet.wait("ready")

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: ask(fleet.directory / "control", "reload", wait=True), range(2)))

    assert all(answer["ok"] for answer in answers)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_workers_recycled_by_units_are_replaced_first(fleet: Fleet) -> None:
    fleet.start(COUNTS, procs=2, recycling={"max_units": 20, "max_units_jitter": 20})

    fleet.wait("exit", count=4)

    assert all(one["done"] >= 20 and one["expected"] for one in fleet.events("exit"))
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_workers_recycled_by_age(fleet: Fleet) -> None:
    fleet.start(procs=1, recycling={"max_lifetime_s": 0.3})

    fleet.wait("left", count=2)

    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_workers_that_grow_are_recycled_after_several_samples(fleet: Fleet) -> None:
    app = """
import asyncio
kept = []
async def main(link):
    async with link:
        link.ready()
        asyncio.get_running_loop().call_later(0.5, lambda: kept.append(b"x" * 100_000_000))
        async for order in link.orders():
            return 0
"""
    fleet.start(app, procs=1, recycling={"max_memory_bytes": 60_000_000, "measure_every_s": 0.1})

    exit_ = fleet.wait("exit")

    assert exit_["expected"]
    assert "MiB private memory, 3 times above the limit" in fleet.log_text()
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_memory_limit_below_the_idle_baseline_is_refused_with_numbers(fleet: Fleet) -> None:
    fleet.start(procs=1, recycling={"max_memory_bytes": 1000})

    fleet.ends(2)
    assert "MiB private" in fleet.log_text()


def test_a_burst_ends_with_0_when_every_worker_is_done(fleet: Fleet) -> None:
    fleet.start(DOES_THREE, procs=3, burst=True, companion={})

    fleet.ends(0)
    assert [one["done"] for one in fleet.events("exit")] == [3, 3, 3]
    assert fleet.events()[-1]["event"] == "companion left"


def test_a_burst_replaces_a_worker_that_crashed(fleet: Fleet) -> None:
    app = """
import os
async def main(link):
    async with link:
        link.ready()
        if not os.path.exists({once!r}):
            open({once!r}, "w").close()
            os.kill(os.getpid(), 9)
"""
    fleet.start(app.format(once=str(fleet.directory / "once")), burst=True)

    fleet.ends(0)
    assert [one["expected"] for one in fleet.events("exit")] == [False, True]


def test_the_control_socket_is_private_and_answers(fleet: Fleet) -> None:
    path = fleet.directory / "control"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    fleet.start(procs=1, control=str(path), pidfile=str(fleet.directory / "pid"))
    fleet.wait("ready")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (fleet.directory / "pid").read_text() == f"{fleet.pid}\n"
    worker = status(fleet)["workers"][0]
    assert (worker["stage"], worker["label"]) == ("ready", f"wire-{worker['pid']}")
    assert ask(path, "scale", procs=2)["procs"] == 2
    fleet.wait("ready", slot=1)
    assert ask(path, "stacks")["ok"]
    assert not ask(path, "nonsense")["ok"]
    assert ask(path, "quiet")["ok"]
    fleet.wait("order", order="Quiet", count=2)
    assert status(fleet)["state"] == "quiet"
    assert ask(path, "stop")["ok"]
    fleet.ends(0)
    assert not path.exists()
    with pytest.raises(NotRunning):
        ask(path, "status")


@pytest.mark.parametrize("held", ["control", "pidfile"])
def test_a_second_fleet_of_the_same_place_is_refused_and_the_first_goes_on(fleet: Fleet, held: str) -> None:
    fleet.start(**{held: str(fleet.directory / "held")})
    fleet.wait("ready")
    first, of_the_first = fleet.process, fleet.left_over()

    fleet.start(companion={}, **{held: str(fleet.directory / "held")})

    assert fleet.process.wait(10) == 1
    assert fleet.left_over() == of_the_first
    assert "Traceback" not in fleet.log_text()
    assert len(fleet.events("ready")) == 1
    fleet.process = first
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_the_endpoint_tells_live_ready_and_figures(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    app = """
async def main(link):
    async with link:
        link.report(done=0, busy=0, slots=1, serving=False)
        link.ready()
        async for order in link.orders():
            if type(order).__name__ == "Quiet":
                link.report(done=0, busy=0, slots=1, serving=True)
            elif type(order).__name__ == "Drain":
                return 0
"""
    fleet.start(app, endpoint=["127.0.0.1", port], control=str(fleet.directory / "control"))
    fleet.wait_log("ready after")

    assert get(port, "/livez") == 200
    assert get(port, "/readyz") == 503
    ask(fleet.directory / "control", "quiet")
    fleet.until(lambda: status(fleet)["workers"][0]["serving"], what="worker that serves")
    assert get(port, "/readyz") == 503
    ask(fleet.directory / "control", "resume")
    fleet.until(lambda: get(port, "/readyz") == 200, what="readiness")
    assert get(port, "/metrics") == 200
    assert get(port, "/") == 404
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_systemd_is_told_what_it_asked_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fleet.directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "600000")
        fleet.start(procs=1, control=str(fleet.directory / "control"))

        told = hear(systemd, "READY=1")
        assert "WATCHDOG=1" in told
        assert "STATUS=running, gen 1: 1/1 workers ready" in told
        fleet.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in hear(systemd, "RELOADING=1")
        fleet.signal(signal.SIGHUP)  # an echo, but systemd waits for its answer
        assert "MONOTONIC_USEC=" in hear(systemd, "RELOADING=1")
        hear(systemd, "READY=1")
        assert status(fleet)["generation"] == 2
        fleet.signal(signal.SIGTERM)
        hear(systemd, "STOPPING=1")
    fleet.ends(0)


def test_what_the_application_left_at_import_is_named(fleet: Fleet) -> None:
    fleet.start(
        "import asyncio, socket, threading, time\n"
        "threading.Thread(target=time.sleep, args=(3600,), name='poller', daemon=True).start()\n"
        "loop = asyncio.new_event_loop()\n"
        "pool = socket.socket()\n"
    )

    fleet.wait("ready")

    for text in ("thread 'poller'", "event loop", "open socket"):
        assert text in fleet.log_text()
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def status(fleet: Fleet) -> dict[str, Any]:
    answer: dict[str, Any] = ask(fleet.directory / "control", "status")["status"]
    return answer


def stages(fleet: Fleet, stage: str) -> list[dict[str, Any]]:
    return [worker for worker in status(fleet)["workers"] if worker["stage"] == stage]


def get(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def hear(systemd: socket.socket, wanted: str) -> str:
    """All that was said up to and including `wanted`."""
    said = ""
    while wanted not in said:
        said += systemd.recv(4096).decode() + "\n"
    return said


SLOW_IMPORT = NOTES_IMPORT + "import time\nwhile not os.path.exists({go!r}): time.sleep(0.01)\n"


def test_a_worker_killed_while_a_reload_imports_is_replaced_by_its_own_generation(fleet: Fleet) -> None:
    fleet.start(procs=2, control=str(fleet.directory / "control"))
    fleet.wait("ready", count=2)
    go = fleet.directory / "go"
    fleet.write_app(SLOW_IMPORT.format(go=str(go)))
    fleet.signal(signal.SIGHUP)
    fleet.wait("imported")

    os.kill(fleet.wait("ready", slot=1)["pid"], signal.SIGKILL)

    fleet.wait("ready", slot=1, generation=1, count=2)
    go.touch()
    fleet.wait_log("reloaded, generation 2")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_the_old_zygote_killed_while_a_reload_imports_delays_nothing(fleet: Fleet) -> None:
    fleet.start(NOTES_IMPORT, procs=2)
    fleet.wait("ready", count=2)
    go = fleet.directory / "go"
    fleet.write_app(SLOW_IMPORT.format(go=str(go)))
    fleet.signal(signal.SIGHUP)
    fleet.wait("imported", count=2)

    os.kill(fleet.wait("imported")["pid"], signal.SIGKILL)

    go.touch()
    fleet.wait_log("reloaded, generation 2")
    fleet.wait("left", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_while_the_canary_boots_leaves_nothing(fleet: Fleet, signum: int) -> None:
    fleet.start(procs=2, timeouts={"drain_s": 0.5})
    fleet.wait("ready", count=2)
    fleet.write_app("import asyncio\nasync def main(link):\n    async with link: await asyncio.sleep(3600)")
    fleet.signal(signal.SIGHUP)
    fleet.wait("born", generation=2)

    fleet.signal(signum)

    fleet.ends(-signum if signum == signal.SIGKILL else 0)
    assert len(fleet.events("left")) == 2


def test_a_busy_worker_finishes_its_work_during_a_reload(fleet: Fleet) -> None:
    fleet.busy()
    fleet.start(procs=1, control=str(fleet.directory / "control"), timeouts={"drain_s": 0.2})
    fleet.wait("ready")

    assert ask(fleet.directory / "control", "reload", wait=True)["ok"]

    assert not fleet.events("left")
    fleet.until(lambda: len(stages(fleet, "leaving")) == 1, what="old worker that finishes")
    fleet.busy(False)
    assert fleet.wait("exit")["expected"]
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
