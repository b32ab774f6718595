"""TERM at every moment of a fleet's start: it ends within its deadline and leaves nothing.

Before the command's first line the signal has its default effect, and there is nothing yet to be left.

`ISTOS_LONG=1` runs the size of the promise: every 5 ms of the first second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fixtures.fleets import Fleets
from tests.fixtures.owners import Owners
from tests.fixtures.programs import LONG_S, clean_env, free_endpoint
from tests.fixtures.telling import QUEUE, Telling

pytestmark = pytest.mark.crash

LONG = bool(os.environ.get("ISTOS_LONG"))
DELAYS_MS = range(0, 1000, 5 if LONG else 125)
SCRIPT = Path(sys.executable).with_name("istos-worker")
ENDS_WITHIN_S = 10.0  # an idle fleet; workers that are not ready get 2 s, the owner 4 s


@dataclass
class Ends:
    """What came of each moment, in milliseconds after the start."""

    killed: list[int] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    longest_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{len(self.killed)} of {len(self.killed) + len(self.drained)} killed before the first line, at most "
            f"{max(self.killed, default=0)} ms after the start; longest way out {self.longest_s:.2f} s"
        )


@dataclass
class Starts:
    """Starts the command as a user does, again and again."""

    fleets: Fleets
    options: Sequence[str]
    ends: Ends = field(default_factory=Ends)

    def end_after(self, delay_ms: int) -> None:
        folder, runtime = self.fleets.folder, self.fleets.runtime
        log = folder / "early.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [
                    *(str(SCRIPT), "app", "--procs", "2", *self.options),
                    *("--namespace", str(self.fleets.network.namespace)),
                    *("--pidfile", str(folder / "pid"), "--control", str(runtime / "c.sock")),
                ],
                env=clean_env(runtime),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGTERM)
        told_at = time.monotonic()
        try:
            code = process.wait(LONG_S)
        finally:
            process.kill()
        self.ends.longest_s = max(self.ends.longest_s, time.monotonic() - told_at)
        assert code in (0, -signal.SIGTERM), (delay_ms, log.read_text())
        (self.ends.drained if code == 0 else self.ends.killed).append(delay_ms)
        self._assert_nothing_left(process.pid, f"{delay_ms} ms, exit code {code}\n{log.read_text()}")
        assert code == 0 or not log.read_text(), (delay_ms, log.read_text())

    def _assert_nothing_left(self, session: int, what: str) -> None:
        give_up_at = time.monotonic() + ENDS_WITHIN_S
        while (alive := of_session(session)) and time.monotonic() < give_up_at:
            time.sleep(0.01)
        assert not alive, f"{alive} left after {what}"
        assert not (self.fleets.folder / "pid").exists(), what
        runtime = self.fleets.runtime
        left = [str(path) for path in runtime.rglob("*") if path != runtime / "istos-worker"]
        assert not left, f"{left} left after {what}"


def of_session(session: int) -> list[int]:
    """The living processes of a session: a fleet's are all in that of its supervisor."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            after_name = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[3]) == session and after_name[0] != "Z":
            found.append(int(name))
    return found


def embedded(_: Owners) -> tuple[str, ...]:
    return ("--embedded", "--data", "data")


def elsewhere(owner: Owners) -> tuple[str, ...]:
    endpoint = free_endpoint()
    owner.start(QUEUE, arguments=("--listen", endpoint))
    return ("--connect", endpoint)


@pytest.mark.parametrize("where", [embedded, elsewhere])
def test_term_at_any_moment_of_the_start_leaves_nothing(
    fleet: Fleets, owner: Owners, where: Callable[[Owners], tuple[str, ...]]
) -> None:
    Telling(fleet)
    starts = Starts(fleet, where(owner))

    for delay_ms in DELAYS_MS:
        starts.end_after(delay_ms)

    print(starts.ends)
    assert starts.ends.longest_s < ENDS_WITHIN_S
    assert not LONG or len(starts.ends.killed) < len(DELAYS_MS) / 4, starts.ends.killed
