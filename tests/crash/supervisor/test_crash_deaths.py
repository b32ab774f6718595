"""Workers, zygotes and supervisors that die: who is replaced, who leaves, what is said."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.crash.supervisor.conftest import Fleet

pytestmark = pytest.mark.crash

EXITS = """
import os, asyncio
async def main(link):
    async with link:
        link.ready()
        {}
"""


def test_a_killed_worker_is_replaced_and_mourned(fleet: Fleet) -> None:
    fleet.busy()
    fleet.start(procs=2)
    fleet.wait("ready", count=2)
    victim = fleet.wait("ready", slot=0)["pid"]

    os.kill(victim, signal.SIGKILL)

    exit_ = fleet.wait("exit", slot=0)
    assert exit_["held"] == ["unit-0"]
    assert "killed by SIGKILL" in exit_["cause"]
    assert fleet.wait("message")["body"] == {"bury": victim}
    fleet.wait("ready", slot=0, count=2)
    fleet.busy(False)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_the_only_worker_is_buried_by_its_replacement(fleet: Fleet) -> None:
    fleet.start(procs=1)
    victim = fleet.wait("ready")["pid"]

    os.kill(victim, signal.SIGKILL)

    replacement = fleet.wait("ready", count=2)["pid"]
    assert fleet.wait("message")["pid"] == replacement
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize(
    "ending", ["return 0", "return 7", "os.kill(os.getpid(), 11)", "raise ValueError('of the user')"]
)
def test_a_worker_that_always_dies_ends_the_fleet_with_5(fleet: Fleet, ending: str) -> None:
    fleet.start(EXITS.format(ending), procs=2)

    fleet.ends(5)
    assert fleet.log_text().count("Traceback (most recent") == (1 if "raise" in ending else 0)


def test_a_worker_that_never_gets_ready_ends_the_fleet_with_3(fleet: Fleet) -> None:
    fleet.start("async def main(link): raise RuntimeError('cannot boot')", procs=2)

    fleet.ends(3)
    assert fleet.log_text().count("Traceback") == 1
    assert "failed as before: RuntimeError: cannot boot" in fleet.log_text()


def test_a_worker_that_hangs_at_boot_ends_the_fleet_with_3(fleet: Fleet) -> None:
    fleet.start(
        "import time\nasync def main(link): time.sleep(3600)",
        timeouts={"boot_s": 1.0},
        restarts={"first_delay_s": 0.01, "max_delay_s": 0.01, "boot_rounds": 2},
    )

    fleet.ends(3)
    assert "not ready within the boot timeout" in fleet.log_text()
    assert "time.sleep" not in fleet.log_text().split("stacks of")[0]


def test_a_failed_import_exits_4_with_the_users_traceback_once(fleet: Fleet) -> None:
    fleet.start("def f():\n    import nowhere_to_be_found\nf()", procs=4)

    fleet.ends(4)
    text = fleet.log_text()
    assert text.count("ModuleNotFoundError") == 1
    assert "serve_zygote" not in text


def test_an_import_that_segfaults_exits_4(fleet: Fleet) -> None:
    fleet.start("import os; os.kill(os.getpid(), 11)")

    fleet.ends(4)
    assert "was killed by SIGSEGV" in fleet.log_text()


def test_an_import_that_calls_exit_exits_4(fleet: Fleet) -> None:
    fleet.start("raise SystemExit(0)")

    fleet.ends(4)


def test_workers_of_a_killed_supervisor_finish_their_work_and_leave(fleet: Fleet) -> None:
    fleet.busy()
    fleet.start(procs=2, companion={})
    fleet.wait("ready", count=2)

    fleet.signal(signal.SIGKILL)

    fleet.wait("order", order="Orphaned", count=2)
    assert not fleet.events("companion left")
    fleet.busy(False)
    fleet.nothing_left()
    left = [one["event"] for one in fleet.events() if one["event"] in ("left", "companion left")]
    assert left == ["left", "left", "companion left"]


def test_a_killed_zygote_disturbs_no_worker_and_comes_back(fleet: Fleet) -> None:
    fleet.start("import sys; note = sys.modules['__main__'].note; note('imported')", procs=2)
    fleet.wait("ready", count=2)
    zygote = fleet.wait("imported")["pid"]
    victim = fleet.wait("ready", slot=1)["pid"]

    os.kill(zygote, signal.SIGKILL)
    fleet.wait("imported", count=2)
    assert not fleet.events("order")
    os.kill(victim, signal.SIGKILL)

    assert "killed by SIGKILL" in fleet.wait("exit", slot=1)["cause"]
    fleet.wait("ready", slot=1, count=2)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_zygote_killed_before_anybody_was_ready_is_started_again(fleet: Fleet) -> None:
    app = """
import os, signal, sys
async def main(link):
    if not os.path.exists({once!r}):
        open({once!r}, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    return await sys.modules["__main__"].serve(link)
"""
    fleet.start(app.format(once=str(fleet.directory / "once")))

    fleet.wait("ready")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_lost_zygote_whose_import_fails_and_hangs_is_started_again(fleet: Fleet) -> None:
    fleet.start("import sys; note = sys.modules['__main__'].note; note('imported')")
    victim = fleet.wait("ready")["pid"]
    fleet.write_app("import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start(); 1/0")

    os.kill(fleet.wait("imported")["pid"], signal.SIGKILL)
    fleet.wait_log("will retry")
    fleet.write_app("")
    os.kill(victim, signal.SIGKILL)

    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_an_import_that_hangs_exits_4_and_shows_where(fleet: Fleet) -> None:
    fleet.start("import time\ndef stuck_here(): time.sleep(3600)\nstuck_here()", timeouts={"boot_s": 1.5})

    fleet.ends(4)
    assert "did not finish within 1.5 s" in fleet.log_text()
    assert "in stuck_here" in fleet.log_text()


def test_a_worker_that_boots_for_ever_goes_when_it_is_scaled_down(fleet: Fleet) -> None:
    app = "import sys, time\nasync def main(link):\n    if link.slot == 1: time.sleep(3600)\n"
    fleet.start(app + "    return await sys.modules['__main__'].serve(link)")
    fleet.wait("ready", slot=0)
    fleet.signal(signal.SIGTTIN)
    fleet.wait("born", slot=1)

    fleet.signal(signal.SIGTTOU)

    assert "deadline" in fleet.wait("exit", slot=1)["cause"]
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_fleet_whose_zygote_is_stopped_ends_without_the_worker_it_owes(fleet: Fleet) -> None:
    fleet.start("import sys; note = sys.modules['__main__'].note; note('imported')", procs=0)
    os.kill(fleet.wait("imported")["pid"], signal.SIGSTOP)
    fleet.signal(signal.SIGTTIN)
    fleet.wait_log("scaling to 1")

    fleet.signal(signal.SIGTERM)

    fleet.ends(0)
    assert "cannot be killed" not in fleet.log_text()


def test_a_stopped_zygote_is_noticed_when_it_does_not_reap(fleet: Fleet) -> None:
    fleet.start("import sys; note = sys.modules['__main__'].note; note('imported')")
    victim = fleet.wait("ready")["pid"]
    os.kill(fleet.wait("imported")["pid"], signal.SIGSTOP)

    os.kill(victim, signal.SIGKILL)

    assert "killed by SIGKILL" in fleet.wait("exit")["cause"]
    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_supervisor_and_zygote_killed_together_leave_nothing(fleet: Fleet) -> None:
    fleet.start("import sys; note = sys.modules['__main__'].note; note('imported')", procs=2)
    fleet.wait("ready", count=2)

    fleet.signal(signal.SIGKILL)
    os.kill(fleet.wait("imported")["pid"], signal.SIGKILL)

    fleet.nothing_left()


@pytest.mark.parametrize(
    "hangs",
    [
        "time.sleep(3600)",
        "async with link: time.sleep(3600)",
        "async with link:\n        async for order in link.orders(): time.sleep(3600)",
    ],
    ids=["at boot", "in the loop", "when it hears of it"],
)
def test_an_orphan_that_hangs_is_ended_by_its_fuse(fleet: Fleet, hangs: str) -> None:
    app = f"import time\nasync def main(link):\n    {hangs}"
    fleet.start(app, timeouts={"drain_s": 0.1})
    fleet.wait("born")

    fleet.signal(signal.SIGKILL)

    fleet.nothing_left()


def test_a_killed_companion_comes_back_and_workers_stay(fleet: Fleet) -> None:
    fleet.start(companion={})
    fleet.wait("ready")

    os.kill(fleet.wait("companion ready")["pid"], signal.SIGKILL)

    fleet.wait("companion ready", count=2)
    assert not fleet.events("order")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    assert fleet.events()[-1]["event"] == "companion left"


def test_a_companion_that_was_ready_comes_back_soon_however_often_it_dies(fleet: Fleet) -> None:
    fleet.start(
        companion={"longest_pause_s": 0.01},
        restarts={"first_delay_s": 3600.0, "max_delay_s": 3600.0, "crashes": 3},
    )

    for death in range(1, 6):
        os.kill(fleet.wait("companion ready", count=death)["pid"], signal.SIGKILL)

    fleet.wait("companion ready", count=6)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_companion_told_to_stop_alone_is_started_again(fleet: Fleet, signum: int) -> None:
    fleet.start(companion={})
    fleet.wait("ready")

    os.kill(fleet.wait("companion ready")["pid"], signum)

    fleet.wait("companion ready", count=2)
    assert len(fleet.events("companion left")) == 1
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_companion_that_cannot_start_ends_the_fleet_with_3(fleet: Fleet) -> None:
    fleet.start(companion={"argv": ["/bin/false"]})

    fleet.ends(3)
    assert not fleet.events("born")


def test_a_companion_that_hangs_at_boot_is_killed_after_its_stacks(fleet: Fleet) -> None:
    hangs = (
        "from supervisor.companion_link import companion_link as c; link = c(); import time; time.sleep(99)"
    )
    fleet.start(
        companion={"argv": [sys.executable, "-c", hangs]},
        timeouts={"boot_s": 1.0},
        restarts={"boot_rounds": 1},
    )

    fleet.ends(3)
    assert "stacks of owner" in fleet.log_text()


def test_a_frozen_loop_is_reported_with_its_stacks_then_replaced(fleet: Fleet) -> None:
    app = """
import asyncio, time
async def main(link):
    async with link:
        link.ready()
        if link.generation and not __import__('os').path.exists('{once}'):
            open('{once}', 'w').close()
            def stuck_here(): time.sleep(3600)
            stuck_here()
        async for order in link.orders():
            return 0
"""
    fleet.start(app.replace("{once}", str(fleet.directory / "once")), timeouts={"stall_s": 0.5})

    assert "stalled" in fleet.wait("exit")["cause"]
    assert "stuck_here" in fleet.log_text()
    fleet.wait("born", count=2)
    fleet.until(lambda: fleet.log_text().count("ready after") == 2, what="second worker")
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


def test_a_fork_that_fails_is_tried_again_and_gives_up_with_3(fleet: Fleet) -> None:
    fleet.start("import os\ndef fork(): raise OSError(11, 'no more processes')\nos.fork = fork")

    fleet.ends(3)
    assert "fork failed: [Errno 11] no more processes" in fleet.log_text()


def test_a_fleet_out_of_descriptors_says_so_and_goes_on(fleet: Fleet) -> None:
    fleet.start()
    fleet.wait("ready", slot=0)
    soft, hard = resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE, (3, hard))

    fleet.signal(signal.SIGTTIN)

    fleet.wait_log("worker 1 not started: [Errno 24] Too many open files")
    resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE, (soft, hard))
    fleet.wait("ready", slot=1)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    assert "a step failed" not in fleet.log_text()


def test_a_log_pipe_that_nobody_reads_stops_nothing(fleet: Fleet) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    fleet.start(procs=1, log=write)
    os.close(write)
    victim = fleet.wait("ready")["pid"]

    os.kill(victim, signal.SIGKILL)

    fleet.wait("ready", count=2)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)
    os.close(read)


def test_strangers_are_reaped_and_not_taken_for_workers(fleet: Fleet) -> None:
    app = """
import asyncio, os, subprocess
async def main(link):
    async with link:
        link.ready()
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(9)
            os._exit(0)
        async for order in link.orders():
            return 0
"""
    fleet.start(app)
    fleet.wait_log("ready after")

    fleet.signal(signal.SIGTERM)

    fleet.ends(0)
    assert len(fleet.events("exit")) == 1


def test_a_stopped_worker_is_stalled_killed_and_replaced(fleet: Fleet) -> None:
    fleet.start(procs=2, timeouts={"stall_s": 0.5})
    fleet.wait("ready", count=2)

    os.kill(fleet.wait("ready", slot=0)["pid"], signal.SIGSTOP)

    assert "stalled" in fleet.wait("exit", slot=0)["cause"]
    fleet.wait("ready", slot=0, count=2)
    assert not fleet.events("exit", slot=1)
    fleet.signal(signal.SIGTERM)
    fleet.ends(0)


@pytest.mark.parametrize("moment", ["idle", "busy"])
def test_a_worker_under_uvloop_hears_signals_and_the_end_of_its_supervisor(fleet: Fleet, moment: str) -> None:
    pytest.importorskip("uvloop")
    app = """
import asyncio, sys, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
"""
    fleet.start(app, procs=1)
    first = fleet.wait("ready")["pid"]
    if moment == "busy":
        fleet.busy()

    os.kill(first, signal.SIGTERM)
    fleet.wait("order", pid=first, order="Drain")
    second = fleet.wait("ready", count=2)["pid"]
    fleet.signal(signal.SIGKILL)

    fleet.wait("order", pid=second, order="Orphaned")
    if moment == "busy":
        fleet.busy(False)
    fleet.nothing_left()
