"""Signals at every moment of life, to the supervisor, a worker, the companion and the whole group."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.crash.supervisor.conftest import Fleet

pytestmark = pytest.mark.crash

STUBBORN = """
import asyncio
async def main(link):
    async with link:
        link.ready()
        async for order in link.orders():
            print(type(order).__name__, flush=True)
            if type(order).__name__ == "{leaves_on}":
                return 0
"""
NOTES_IMPORT = "import sys, os; note = sys.modules['__main__'].note; note('imported')\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("to_group", [False, True], ids=["supervisor", "group"])
def test_an_idle_fleet_stops_at_once_and_in_order(fleet: Fleet, signum: int, to_group: bool) -> None:
    fleet.start(procs=3, companion={})
    fleet.wait("ready", count=3)

    fleet.signal_group(signum) if to_group else fleet.signal(signum)

    fleet.ends(0)
    assert all(one["expected"] for one in fleet.events("exit"))
    assert len(fleet.events("left")) == 3
    assert fleet.events()[-1]["event"] == "companion left"


@pytest.mark.parametrize("to_group", [False, True], ids=["supervisor", "group"])
def test_a_busy_fleet_finishes_its_work_first(fleet: Fleet, to_group: bool) -> None:
    fleet.busy()
    fleet.start(procs=2)
    fleet.wait("ready", count=2)

    fleet.signal_group(signal.SIGTERM) if to_group else fleet.signal(signal.SIGTERM)
    fleet.signal_group(signal.SIGTERM) if to_group else fleet.signal(signal.SIGTERM)

    fleet.wait("order", order="Drain", count=2)
    assert not fleet.events("left")
    fleet.busy(False)
    fleet.ends(0)
    assert not fleet.events("order", order="HandBack")
    assert len(fleet.events("left")) == 2


def test_the_drain_deadline_ends_what_will_not_leave(fleet: Fleet) -> None:
    fleet.start(STUBBORN.format(leaves_on="never"), timeouts={"drain_s": 0.3})
    fleet.wait_log("ready after")

    fleet.signal(signal.SIGTERM)

    fleet.ends(0)
    assert "did not leave within its deadline" in fleet.events("exit")[0]["cause"]


def test_a_second_term_hands_back_and_a_third_kills(fleet: Fleet) -> None:
    fleet.start(STUBBORN.format(leaves_on="never"))
    fleet.wait_log("ready after")

    fleet.signal(signal.SIGTERM)
    fleet.wait_log("Drain")
    time.sleep(1.05)
    fleet.signal(signal.SIGINT)
    fleet.wait_log("HandBack")
    time.sleep(1.05)
    fleet.signal(signal.SIGTERM)

    fleet.ends(0)
    assert "the fleet was killed" in fleet.events("exit")[0]["cause"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_alone_finishes_and_is_replaced(fleet: Fleet, signum: int) -> None:
    fleet.busy()
    fleet.start(procs=1)
    first = fleet.wait("ready")["pid"]

    os.kill(first, signum)

    fleet.wait("order", pid=first, order="Drain")
    second = fleet.wait("ready", count=2)["pid"]
    assert not fleet.events("left")
    fleet.busy(False)
    assert fleet.wait("exit")["expected"]
    assert first != second
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_worker_told_to_quit_alone_is_killed_when_it_does_not_hand_back(fleet: Fleet) -> None:
    fleet.start(STUBBORN.format(leaves_on="never"), timeouts={"hand_back_s": 0.2, "drain_s": 60.0})
    fleet.wait_log("ready after")

    os.kill(fleet.wait("born")["pid"], signal.SIGQUIT)

    assert "deadline" in fleet.wait("exit")["cause"]
    fleet.signal(signal.SIGQUIT)
    fleet.ends(0)


def test_a_hang_up_disturbs_nobody_under_nohup(fleet: Fleet) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fleet.start()
    signal.signal(signal.SIGHUP, before)
    fleet.wait("ready")

    fleet.signal_group(signal.SIGHUP)

    time.sleep(1.2)  # the moment after which a worker would be replaced for a HUP of its own
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    assert len(fleet.events("born")) == 1


def test_hup_to_one_worker_replaces_it_after_its_replacement_is_ready(fleet: Fleet) -> None:
    fleet.start(procs=1)
    first = fleet.wait("ready")["pid"]

    os.kill(first, signal.SIGHUP)

    fleet.wait("left", pid=first)
    events = [one["event"] for one in fleet.events()]
    assert events.index("left") > [index for index, one in enumerate(events) if one == "rising"][1]
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_hup_to_the_group_is_one_reload(fleet: Fleet) -> None:
    fleet.start(NOTES_IMPORT, procs=2)
    fleet.wait("ready", count=2)

    fleet.signal_group(signal.SIGHUP)

    fleet.wait_log("reloaded, generation 2")
    fleet.wait("left", count=2)
    time.sleep(1.2)  # the moment after which a worker would be replaced for a HUP of its own
    assert len(fleet.events("imported")) == 2
    assert len(fleet.events("ready")) == 4
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2]
)
def test_no_signal_to_the_zygote_disturbs_anything(fleet: Fleet, signum: int) -> None:
    fleet.start(NOTES_IMPORT)
    fleet.wait("ready")
    os.kill(fleet.wait("imported")["pid"], signum)

    os.kill(fleet.wait("ready")["pid"], signal.SIGKILL)

    fleet.wait("ready", count=2)
    assert len(fleet.events("imported")) == 1
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_usr2_quiets_and_resumes(fleet: Fleet) -> None:
    fleet.start(procs=2)
    fleet.wait("ready", count=2)

    fleet.signal(signal.SIGUSR2)
    fleet.wait("order", order="Quiet", count=2)
    time.sleep(1.05)
    fleet.signal_group(signal.SIGUSR2)
    fleet.wait("order", order="Resume", count=2)

    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_ttin_and_ttou_scale_down_to_nothing_and_up_again(fleet: Fleet) -> None:
    fleet.start(procs=1)
    fleet.wait("ready", slot=0)

    fleet.signal(signal.SIGTTIN)
    fleet.wait("ready", slot=1)
    for left in (1, 2):
        fleet.signal(signal.SIGTTOU)
        fleet.wait("left", count=left)
    fleet.signal(signal.SIGTTOU)
    fleet.signal(signal.SIGTTIN)
    fleet.wait("ready", slot=0, count=2)

    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_usr1_writes_threads_and_tasks_of_every_worker(fleet: Fleet) -> None:
    app = """
import asyncio
async def deep(): await asyncio.sleep(3600)
async def outer(): await deep()
async def main(link):
    async with link:
        link.describe = lambda: "holds job-17"
        task = asyncio.create_task(outer(), name="the task")
        link.ready()
        async for order in link.orders():
            task.cancel()
            return 0
"""
    fleet.start(app)
    fleet.wait_log("ready after")

    fleet.signal_group(signal.SIGUSR1)

    for text in ("stacks of worker 0 gen 1", "Current thread", "task 'the task'", "in deep", "holds job-17"):
        fleet.wait_log(text)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_during_a_long_import_leaves_nothing(fleet: Fleet, signum: int) -> None:
    fleet.start(NOTES_IMPORT + "import time; time.sleep(3600)", procs=2)
    fleet.wait("imported")

    fleet.signal(signum)

    fleet.ends(0 if signum == signal.SIGTERM else -signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGQUIT])
def test_a_stop_while_workers_boot_leaves_nothing(fleet: Fleet, signum: int) -> None:
    app = (
        NOTES_IMPORT + "import asyncio\nasync def main(link):\n    async with link: await asyncio.sleep(3600)"
    )
    fleet.start(app, procs=2, timeouts={"drain_s": 0.5, "hand_back_s": 0.5})
    fleet.wait("born", count=2)

    fleet.signal(signum)

    fleet.ends(-signum if signum == signal.SIGKILL else 0)


def test_the_supervisor_killed_while_draining_leaves_nothing(fleet: Fleet) -> None:
    fleet.busy()
    fleet.start(procs=2)
    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.wait("order", order="Drain", count=2)

    fleet.signal(signal.SIGKILL)

    fleet.busy(False)
    fleet.nothing_left()
    assert len(fleet.events("left")) == 2


def test_the_zygote_killed_while_draining_changes_nothing(fleet: Fleet) -> None:
    fleet.busy()
    fleet.start(NOTES_IMPORT, procs=2)
    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.wait("order", order="Drain", count=2)

    os.kill(fleet.wait("imported")["pid"], signal.SIGKILL)

    fleet.busy(False)
    fleet.ends(0)
    assert len(fleet.events("left")) == 2
    assert all(one["expected"] for one in fleet.events("exit"))


def test_a_frozen_group_that_is_thawed_kills_nobody(fleet: Fleet) -> None:
    fleet.start(procs=1, timeouts={"stall_s": 0.5})
    fleet.wait("ready")

    fleet.signal_group(signal.SIGSTOP)
    time.sleep(3.2)  # more than a supervisor means to be away
    fleet.signal_group(signal.SIGCONT)

    fleet.wait_log("nobody is late")
    fleet.signal(signal.SIGUSR2)
    fleet.wait("order", order="Quiet")
    time.sleep(1.0)
    assert not fleet.events("exit")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize("third", range(3))
def test_term_at_any_moment_of_the_start_ends_cleanly(fleet: Fleet, third: int) -> None:
    """Before the first line of ours has run, TERM has its default effect, and there is nothing to end."""
    for delay_ms in range(third * 30, 540, 90):
        fleet.log.unlink(missing_ok=True)
        fleet.start(procs=2, companion={})
        time.sleep(delay_ms / 1000)
        fleet.signal(signal.SIGTERM)
        code = fleet.process.wait(10)
        fleet.nothing_left()
        had_begun = "started" in fleet.log_text()
        assert code == 0 or (code == -signal.SIGTERM and not had_begun), (delay_ms, fleet.log_text())


def test_a_closed_link_is_not_a_living_worker(fleet: Fleet) -> None:
    """An application that closes all descriptors cannot be heard any more: it is replaced."""
    app = """
import asyncio, os
async def main(link):
    async with link:
        link.ready()
        await asyncio.sleep(0.2)
        if not os.path.exists({once!r}):
            open({once!r}, "w").close()
            os.closerange(3, 100)
            while True:
                import time; time.sleep(0.05)
        async for order in link.orders():
            return 0
"""
    fleet.start(app.format(once=str(fleet.directory / "once")), timeouts={"drain_s": 0.5})

    fleet.until(lambda: fleet.log_text().count("ready after") == 2, what="second worker")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    assert json.dumps(fleet.events("exit")).count("deadline") == 1
