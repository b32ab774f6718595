"""Collect dead children, ours and adopted. Knows wait4; not whose they are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from supervisor import prctl
from supervisor.exits import Exit, exit_from_status

_STRAYS_KEPT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    pid: int
    exit: Exit
    peak_memory_bytes: int


def reap_all() -> list[Reaped]:
    """Everything that is dead and a child of this process; never waits."""
    found: list[Reaped] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append(
            Reaped(pid=pid, exit=exit_from_status(status), peak_memory_bytes=peak_bytes(usage.ru_maxrss))
        )


def peak_bytes(ru_maxrss: int) -> int:
    """Kibibytes on Linux, bytes on macOS (getrusage(2))."""
    return ru_maxrss if os.uname().sysname == "Darwin" else ru_maxrss * 1024


def still_there(pid: int) -> bool:
    """An adopted worker that nobody has reaped yet, this process included."""
    try:
        if prctl.ADOPTS_ORPHANS:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        else:
            os.kill(pid, 0)  # it is init's child (macOS): only its pid tells
    except (ChildProcessError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def is_zombie(pid: int) -> bool:
    """Dead, and its parent has not asked (proc(5)); False where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"Z")
    except OSError:
        return False


@dataclass(slots=True)
class Strays:
    """Dead children whose parent we may turn out to be: a zygote's death is seen after its orphans'."""

    kept: dict[int, Reaped] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)

    def add(self, reaped: Reaped, now: float) -> None:
        self.kept[reaped.pid], self._since[reaped.pid] = reaped, now

    def forget_old(self, now: float) -> None:
        for pid in [pid for pid, since in self._since.items() if now - since > _STRAYS_KEPT_S]:
            self.kept.pop(pid, None)
            del self._since[pid]
