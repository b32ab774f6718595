"""Which ticks of a recurring job are due. Pure: times in, times out. Times are wall-clock seconds.

A tick is named by the time it was due, so that every replica and every restart gives it the same name, and the
queue's owner, who remembers the last one, takes each tick once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from istos_worker.client.bodies import Serializes

CatchUp = Literal["skip", "once", "all"]
LATE_S = 60.0
"""A tick at most this late is fired under every policy: a restart within the due minute loses nothing."""
MAX_CATCH_UP = 100
_NAME_DIGITS = 16


class Rhythm(Protocol):
    """When a schedule is due."""

    def first(self, now: float) -> float:
        """The first tick of a schedule that never fired."""
        ...

    def after(self, tick: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Every:
    every_s: float
    initial_delay_s: float

    def first(self, now: float) -> float:
        return now + self.initial_delay_s

    def after(self, tick: float) -> float:
        return tick + self.every_s


class NextAfter(Protocol):
    """`queue.cron.CronSchedule`."""

    def next_after(self, after: datetime, /) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Cron:
    expression: NextAfter
    tz: tzinfo | None
    """None: the machine's own time zone."""

    def first(self, now: float) -> float:
        return self.after(now)

    def after(self, tick: float) -> float:
        here = datetime.fromtimestamp(tick, UTC).astimezone(self.tz)
        return self.expression.next_after(here).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One recurring job, as declared."""

    prefix: str
    data: Any
    name: str
    rhythm: Rhythm
    catch_up: CatchUp = "skip"
    priority: int = 0
    serializer: Serializes | None = None
    token: str | None = field(default=None, repr=False)

    def preview(self, count: int = 5, *, now: float | None = None) -> list[datetime]:
        """The next times it is due."""
        start = datetime.now(UTC).timestamp() if now is None else now
        return [
            datetime.fromtimestamp(tick, UTC) for tick in islice(self._from(self.rhythm.first(start)), count)
        ]

    def _from(self, tick: float) -> Iterator[float]:
        while True:
            yield tick
            tick = self.rhythm.after(tick)

    def due(self, last: float | None, now: float, started: float) -> tuple[list[float], float]:
        """The ticks to fire at `now`, in order, and the next one after them. `last`: the last tick known to
        have fired; None: none ever did, and the schedule began at `started`."""
        missed: list[float] = []
        tick = self.rhythm.first(started) if last is None else self.rhythm.after(last)
        if isinstance(self.rhythm, Every) and tick < now - self.rhythm.every_s * MAX_CATCH_UP:
            # Years of missed seconds need not be counted one by one.
            behind = int((now - tick) // self.rhythm.every_s) - MAX_CATCH_UP
            tick += behind * self.rhythm.every_s
        while tick <= now:
            missed.append(tick)
            if len(missed) > MAX_CATCH_UP:
                del missed[0]
            tick = self.rhythm.after(tick)
        return self._to_fire(missed, now), tick

    def _to_fire(self, missed: list[float], now: float) -> list[float]:
        match self.catch_up:
            case "all":
                return missed[-MAX_CATCH_UP:]
            case "once":
                return missed[-1:]
            case "skip":
                return [tick for tick in missed[-1:] if now - tick <= LATE_S]


def tick_name(tick: float) -> str:
    """Ticks compare as these names do."""
    return f"{round(tick * 1000):0{_NAME_DIGITS}d}"


def tick_time(name: str | None) -> float | None:
    """The time a tick's name says; None for a name that is none of ours."""
    if name is None or not name.isascii() or not name.isdigit():
        return None
    return int(name) / 1000


def tick_job_id(schedule: str, tick: str) -> str:
    """The same job for the same tick, whoever fires it."""
    return f"{hashlib.blake2b(schedule.encode(), digest_size=12).hexdigest()}.{tick}"


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
    if catch_up not in get_args(CatchUp):
        raise ValueError(f"catch_up must be one of {', '.join(get_args(CatchUp))}, got {catch_up!r}")
    told = f"{prefix}\n{every_s}\n{cron}\n{tz}".encode() + b"\n" + body
    return Schedule(
        prefix=prefix,
        data=data,
        name=name or hashlib.blake2b(told, digest_size=12).hexdigest(),
        rhythm=_rhythm(every_s, cron, initial_delay_s, tz),
        catch_up=catch_up,
        priority=priority,
        serializer=serializer,
        token=token,
    )


def _rhythm(
    every_s: float | None, cron: str | None, initial_delay_s: float | None, tz: str | tzinfo | None
) -> Rhythm:
    if every_s is not None:
        return _every(every_s, initial_delay_s)
    return _cron(str(cron), initial_delay_s, tz)


def _every(every_s: float, initial_delay_s: float | None) -> Every:
    if not every_s > 0:
        raise ValueError("schedule(every_s=) must be positive")
    delay_s = every_s if initial_delay_s is None else initial_delay_s
    if not delay_s >= 0:
        raise ValueError(f"initial_delay_s must not be negative, got {delay_s!r}")
    return Every(every_s, delay_s)


def _cron(expression: str, initial_delay_s: float | None, tz: str | tzinfo | None) -> Cron:
    from istos_worker.queue.cron import CronSchedule

    if initial_delay_s:
        raise ValueError("initial_delay_s goes with every_s=, not with cron=")
    try:
        zone = ZoneInfo(tz) if isinstance(tz, str) else tz
    except (ZoneInfoNotFoundError, ValueError) as unknown:
        raise ValueError(f"unknown time zone {tz!r}") from unknown
    return Cron(CronSchedule(expression), zone)
