"""A recurring job as declared, and how its ticks travel. Which ticks are due, `ticks` says."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from istos_worker.queue.cron import CronSchedule
from istos_worker.scheduling.ticks import CatchUp, Every, Rhythm, tick_time, ticks_due

if TYPE_CHECKING:
    from istos_worker.client.bodies import Serializes

_LOCAL_ZONE_FILE = "/etc/localtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One recurring job. Exactly one of `every_s` and `cron` is set."""

    prefix: str
    data: Any
    name: str
    every_s: float | None = None
    initial_delay_s: float = 0.0
    cron: CronSchedule | None = None
    catch_up: CatchUp = "skip"
    priority: int = 0
    serializer: Serializes | None = None
    token: str | None = field(default=None, repr=False)

    def due(self, last: str | None, now: datetime, started: datetime) -> tuple[list[str], datetime]:
        """The names of the ticks to fire at `now`, oldest first, and the time of the next one. `last`: the
        newest tick fired anywhere; `started`: since when this process follows the schedule."""
        rhythm, since = self._rhythm(last, started)
        return ticks_due(rhythm, last, now, self.catch_up, since=since), rhythm.next_after(now)

    def _rhythm(self, last: str | None, started: datetime) -> tuple[Rhythm, datetime]:
        if self.cron is not None:
            return self.cron, started
        assert self.every_s is not None
        # An interval goes on from the last tick, whoever fired it; a new one begins after its delay.
        first = started + timedelta(seconds=self.initial_delay_s) if last is None else tick_time(last)
        return Every(every_s=self.every_s, anchor=first.timestamp()), first - timedelta(
            seconds=self.every_s / 2
        )

    def preview(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """The next times it is due, as if it began now (or at `after`)."""
        at = datetime.now(UTC) if after is None else after
        rhythm, since = self._rhythm(None, at)
        times: list[datetime] = []
        for _ in range(count):
            since = rhythm.next_after(since)
            times.append(since)
        return times


def tick_job_id(schedule: str, tick: str) -> str:
    """The same job for the same tick, whoever fires it."""
    name = hashlib.blake2b(schedule.encode(), digest_size=12).hexdigest()
    return f"{name}.{tick.replace(':', '')}"


def make_schedule(
    prefix: str,
    data: Any,
    body: bytes,
    *,
    every_s: float | None,
    cron: str | None,
    initial_delay_s: float | None,
    tz: str | tzinfo | None,
    catch_up: CatchUp,
    name: str | None,
    priority: int,
    serializer: Serializes | None,
    token: str | None,
) -> Schedule:
    """Raises ValueError (CronError is one) for what cannot be."""
    if (every_s is None) == (cron is None):
        raise ValueError("schedule() needs exactly one of every_s= or cron=")
    if every_s is not None and not every_s > 0:
        raise ValueError("schedule(every_s=) must be positive")
    if initial_delay_s is not None and not initial_delay_s >= 0:
        raise ValueError(f"initial_delay_s must not be negative, got {initial_delay_s!r}")
    if catch_up not in get_args(CatchUp):
        raise ValueError(f"catch_up must be one of {', '.join(get_args(CatchUp))}, got {catch_up!r}")
    if name is not None and not 0 < len(name) <= 200:
        raise ValueError("a schedule's name has 1 to 200 characters")
    told = f"{prefix}\n{every_s}\n{cron}\n{tz}\n".encode() + body
    return Schedule(
        prefix=prefix,
        data=data,
        name=name or hashlib.blake2b(told, digest_size=12).hexdigest(),
        every_s=every_s,
        initial_delay_s=(every_s or 0.0) if initial_delay_s is None else initial_delay_s,
        cron=None if cron is None else CronSchedule(cron, tz or local_zone()),
        catch_up=catch_up,
        priority=priority,
        serializer=serializer,
        token=token,
    )


def local_zone() -> tzinfo:
    """The machine's zone with its changes of the clocks, which `datetime.astimezone()` does not give."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named:
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError):
            return ZoneInfo(named)
    try:
        with open(_LOCAL_ZONE_FILE, "rb") as file:
            return ZoneInfo.from_file(file, key=_LOCAL_ZONE_FILE)
    except (OSError, ValueError):
        return UTC
