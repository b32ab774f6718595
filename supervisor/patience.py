"""Has this process been awake long enough to call others late? Pure.

A suspended machine, a frozen container or a SIGSTOP of the whole group stops everybody's clocks or
loops at once; whoever looks first afterwards must not kill the others for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

_SUSPEND_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`awake_since`: monotonic; `slept_s`: how long the last gap was, 0 if there was none."""

    looked_at: float
    suspended_s: float
    awake_since: float
    slept_s: float = 0.0


def begin(now: float, boottime: float) -> Patience:
    return Patience(looked_at=now, suspended_s=boottime - now, awake_since=now)


def look(patience: Patience, *, now: float, boottime: float, at_most_every_s: float) -> Patience:
    """`at_most_every_s`: the longest this process means to be away."""
    suspended_s = boottime - now
    gap_s = now - patience.looked_at
    asleep = gap_s > at_most_every_s or suspended_s - patience.suspended_s > _SUSPEND_S
    return Patience(
        looked_at=now,
        suspended_s=suspended_s,
        awake_since=now if asleep else patience.awake_since,
        slept_s=gap_s if asleep else 0.0,
    )


def boottime() -> float:
    """As the monotonic clock, but running through a suspend (Linux); else the monotonic clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
