"""How a process ended and what that most likely means; how a fleet ends. Pure."""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass
from typing import TypeAlias, assert_never


class ExitCode(enum.IntEnum):
    """CONTRACT.md section 2."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    NO_BOOT = 3
    NO_IMPORT = 4
    CRASH_LOOP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a fleet ends. `text` is printed once, as it is; None: `reason` says enough."""

    exit_code: int
    reason: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    code: int

    def __str__(self) -> str:
        return f"exited with code {self.code}"


@dataclass(frozen=True, slots=True)
class Signaled:
    signum: int

    def __str__(self) -> str:
        return f"killed by {signal_name(self.signum)}"


@dataclass(frozen=True, slots=True)
class Lost:
    """It is gone, but whoever could have told how is gone too."""

    def __str__(self) -> str:
        return "gone, exit status unknown"


Exit: TypeAlias = Exited | Signaled | Lost


def exit_from_status(status: int) -> Exit:
    """From the status of wait(2)."""
    if os.WIFSIGNALED(status):
        return Signaled(os.WTERMSIG(status))
    return Exited(os.waitstatus_to_exitcode(status))


def likely_cause(exit_: Exit, *, ours: str | None, oom_kills: int) -> str:
    """`ours`: why we killed it ourselves; `oom_kills`: new ones in our cgroup since the last death."""
    if ours is not None:
        return f"{exit_}, {ours}"
    match exit_:
        case Signaled(signum=signal.SIGKILL) if oom_kills > 0:
            return f"{exit_}, out of memory ({oom_kills} kernel oom kills in this cgroup)"
        case Signaled(signum=signal.SIGKILL):
            return f"{exit_}, likely out of memory or an operator"
        case Signaled(signum=signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGFPE):
            return f"{exit_}, a fault in native code"
        case Signaled(signum=signal.SIGABRT):
            return f"{exit_}, native code gave up (see its last output)"
        case Exited(code=0):
            return f"{exit_}, left by itself"
        case Exited() | Signaled() | Lost():
            return str(exit_)
        case _:
            assert_never(exit_)


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
