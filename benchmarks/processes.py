"""A system's processes: started together, looked at as one, ended for certain. Linux's /proc; no queue.

Each command leads a session of its own. What belongs to the group is whatever is in those sessions or
descends from their leaders, so forked workers and their helpers count too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
POLL_S = 0.005


def wait_until(true: Callable[[], bool], timeout_s: float, *, every_s: float = POLL_S) -> bool:
    until = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    pid: int
    parent: int
    session: int
    cpu_s: float
    """Its own and that of the children it has waited for."""


def running() -> list[Stat]:
    """Every process but zombies."""
    return [stat for name in os.listdir("/proc") if name.isdigit() and (stat := _stat(int(name)))]


def _stat(pid: int) -> Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] == "Z":
        return None
    cpu_s = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
    return Stat(pid=pid, parent=int(fields[1]), session=int(fields[3]), cpu_s=cpu_s)


def family(leaders: Iterable[int]) -> list[Stat]:
    """The leaders' sessions and descendants."""
    everyone = running()
    known = set(leaders)
    members = {stat.pid for stat in everyone if stat.pid in known or stat.session in known}
    while grown := {stat.pid for stat in everyone if stat.parent in members} - members:
        members |= grown
    return [stat for stat in everyone if stat.pid in members]


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size: pages shared by forked processes count once over all of them."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
    return total_kib / 1024


class Group:
    """Some commands, running until the `with` block ends."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self.started_ns = time.monotonic_ns()
        with log.open("ab") as output:
            self.leaders = [
                subprocess.Popen(
                    list(command),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                for command in commands
            ]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def members(self) -> list[Stat]:
        return family(leader.pid for leader in self.leaders)

    def pids(self) -> list[int]:
        return [stat.pid for stat in self.members()]

    def cpu_s(self) -> float:
        return sum(stat.cpu_s for stat in self.members())

    def pss_mb(self) -> float:
        return pss_mb(self.pids())

    def alive(self) -> bool:
        return all(leader.poll() is None for leader in self.leaders)

    def ended(self) -> bool:
        return all(leader.poll() is not None for leader in self.leaders)

    def terminate(self) -> None:
        for leader in self.leaders:
            if leader.poll() is None:
                leader.send_signal(signal.SIGTERM)

    def stop(self, grace_s: float = 6.0) -> None:
        """TERM, and KILL for what is left after the grace."""
        left = {stat.pid for stat in self.members()}
        self.terminate()
        if not wait_until(lambda: not self._left(left), grace_s, every_s=0.02):
            for pid in self._left(left):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for leader in self.leaders:
            leader.wait(10)

    def _left(self, known: set[int]) -> set[int]:
        """Also the orphans that left the session before their parent died."""
        for leader in self.leaders:
            leader.poll()
        everyone = {stat.pid for stat in running()}
        return {stat.pid for stat in self.members()} | (known & everyone)
