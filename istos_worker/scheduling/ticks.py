"""Which ticks of a rhythm are due, and what they are called. Pure: whoever fires them brings the clock.

A tick's name is its time in UTC, so names sort as the ticks follow each other, and every process that knows the
schedule finds the same ones, whatever it was doing before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from istos_worker.queue.cron import CronSchedule

CatchUp = Literal["skip", "once", "all"]
"""What becomes of ticks that were missed: nothing; the last of them only; all of them, the newest first to count
against a cap."""

MAX_CATCH_UP = 100
ON_TIME_S = 60.0
"""A tick this old is late, not missed: an owner that restarts within the due minute fires it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOWS = (
    timedelta(hours=1),
    timedelta(days=1),
    timedelta(days=32),
    timedelta(days=400),
    timedelta(days=366 * 9),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """A fixed interval, counted from `anchor` (Unix seconds), the same for every process."""

    every_s: float
    anchor: float = 0.0

    def __post_init__(self) -> None:
        if not self.every_s >= 0.001 or math.isinf(self.every_s):
            raise ValueError(f"every_s must be at least 0.001 s, got {self.every_s!r}")

    def next_after(self, after: datetime) -> datetime:
        """The first tick strictly after this time, in UTC."""
        number = math.floor((after.timestamp() - self.anchor) / self.every_s)
        while (at := self._tick(number)) <= after:
            number += 1
        return at

    def _tick(self, number: int) -> datetime:
        """On the millisecond, as the tick's name has it: a name says its time exactly."""
        return _EPOCH + timedelta(milliseconds=round((self.anchor + number * self.every_s) * 1000))


Rhythm = Every | CronSchedule


def tick_name(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def tick_time(name: str) -> datetime:
    """The time that a tick's name says. Raises ValueError for any other text."""
    return datetime.strptime(name, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def ticks_due(
    rhythm: Rhythm,
    last_tick: str | None,
    now: datetime,
    policy: CatchUp = "skip",
    *,
    since: datetime | None = None,
    cap: int = MAX_CATCH_UP,
) -> list[str]:
    """The names of the ticks to fire now, oldest first.

    `last_tick` is the newest one fired anywhere; None, if there is none: then `since`, when the rhythm began to be
    followed, and without that nothing is due yet.
    """
    after = tick_time(last_tick) if last_tick is not None else since
    if after is None:
        return []
    # In UTC: within any one zone, Python compares the faces of the clocks.
    after, now = after.astimezone(UTC), now.astimezone(UTC)
    if after >= now:
        return []
    if policy == "all":
        return [tick_name(at) for at in _newest(rhythm, after, now, cap)]
    newest = _newest(rhythm, after, now, 1)
    if policy == "skip":
        newest = [at for at in newest if (now - at).total_seconds() <= ON_TIME_S]
    return [tick_name(at) for at in newest]


def _newest(rhythm: Rhythm, after: datetime, now: datetime, count: int) -> list[datetime]:
    """The last `count` ticks in (after, now], found from the near end: an outage of a year costs no year's walk."""
    ticks: list[datetime] = []
    for window in _windows(rhythm, count):
        start = max(after, now - window)
        ticks = _between(rhythm, start, now)
        if len(ticks) >= count or start == after:
            break
    return ticks[-count:]


def _windows(rhythm: Rhythm, count: int) -> tuple[timedelta, ...]:
    if isinstance(rhythm, Every):
        return (timedelta(seconds=rhythm.every_s * (count + 1)),)
    return _WINDOWS


def _between(rhythm: Rhythm, start: datetime, end: datetime) -> list[datetime]:
    ticks = []
    at = rhythm.next_after(start).astimezone(UTC)
    while at <= end:
        ticks.append(at)
        at = rhythm.next_after(at).astimezone(UTC)
    return ticks
