"""What a stop signal means, given those that came before. Pure; used by supervisor and workers alike."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SAME_SIGNAL_WITHIN_S = 1.0


class Rung(enum.IntEnum):
    """How far a stop has come; it only ever climbs."""

    RUN = 0
    DRAIN = 1
    HAND_BACK = 2
    KILL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    rung: Rung = Rung.RUN
    climbed_at: float | None = None
    seen: Mapping[int, float] = field(default_factory=dict)


def fresh(ladder: Ladder, signum: int, now: float) -> tuple[Ladder, bool]:
    """Record `signum`; False if it is the echo of one that came less than a second ago."""
    last = ladder.seen.get(signum)
    if last is not None and now - last < SAME_SIGNAL_WITHIN_S:
        return ladder, False
    return replace(ladder, seen={**ladder.seen, signum: now}), True


def climb(ladder: Ladder, signum: int, now: float) -> Ladder:
    """TERM and INT climb one rung a second at most; QUIT goes straight to handing back."""
    ladder, counts = fresh(ladder, signum, now)
    if not counts:
        return ladder
    if signum == signal.SIGQUIT and ladder.rung < Rung.HAND_BACK:
        return replace(ladder, rung=Rung.HAND_BACK, climbed_at=now)
    if ladder.climbed_at is not None and now - ladder.climbed_at < SAME_SIGNAL_WITHIN_S:
        return ladder
    return replace(ladder, rung=Rung(min(ladder.rung + 1, Rung.KILL)), climbed_at=now)
