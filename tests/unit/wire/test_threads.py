"""What a session's threads are like, in a process of its own: Zenoh makes them once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, socket, subprocess, sys
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings

async def main():
    before = set(os.listdir("/proc/self/task"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = (f"tcp/127.0.0.1:{free.getsockname()[1]}",)
    here = await Session.open(ZenohSettings(scouting="off", listen=endpoint))
    there = await Session.open(ZenohSettings(connect=endpoint))
    theirs = set(os.listdir("/proc/self/task")) - before
    policies = {os.sched_getscheduler(int(thread)) for thread in theirs}
    assert policies == {os.SCHED_BATCH}, policies
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    child = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
    assert int(subprocess.check_output(child)) == os.SCHED_OTHER
    await there.aclose()
    await here.aclose()
    print(len(theirs))

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling classes are Linux's")
def test_zenohs_threads_wait_for_a_free_core_and_nobody_elses_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
