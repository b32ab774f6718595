"""When a cron expression fires (CONTRACT.md section 4, rule 11). Knows calendars and clocks; not jobs.

The library `cronsim` reads the five fields and finds the wall-clock times they match. What a change of the clocks
makes of those times is decided here, because it should depend on the hour field alone:

- Fixed hours name times of the day. One that is skipped fires once, right after the gap; one that is repeated fires
  the first time only.
- Wildcard hours (`*`, `*/2`) name a rhythm. It follows real time: nothing is made up for a gap, and a repeated hour
  fires again.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_MAX_HOPS = 10_000


class CronError(ValueError):
    """The expression cannot be read, or names no time that ever comes."""


class CronSchedule:
    """A parsed expression. `tz`: the zone whose clocks it follows, by name or as an object; None: those of the
    datetime that is asked about."""

    def __init__(self, expr: str, tz: str | tzinfo | None = None) -> None:
        self.expr = expr
        self.tz = _zone(tz)
        fields = _ALIASES.get(expr.strip().lower(), expr).upper().split()
        if len(fields) != 5:
            raise CronError(
                f"a cron expression has 5 fields (minute hour day-of-month month day-of-week), {expr!r} has "
                f"{len(fields)}"
            )
        fields[4] = fields[4].replace("-SUN", "-7")
        try:
            self._sim = CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001 - wall-clock time
        except CronSimError as bad:
            raise CronError(f"{str(bad).lower()} in cron expression {expr!r}") from bad
        self._is_rhythm = fields[1].startswith("*")

    def __repr__(self) -> str:
        return f"CronSchedule({self.expr!r}, tz={self.tz!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CronSchedule) and (self.expr, self.tz) == (other.expr, other.tz)

    def __hash__(self) -> int:
        return hash((self.expr, self.tz))

    def next_after(self, after: datetime) -> datetime:
        """The first time strictly after this one. With a naive datetime and no `tz`, naive wall-clock time without
        any change of clocks; otherwise a datetime in the schedule's zone, or else in the argument's."""
        zone = self.tz or after.tzinfo
        if zone is None:
            return self._wall_after(after)
        aware = after.replace(tzinfo=zone) if after.tzinfo is None else after
        return self._instant_after(aware.astimezone(UTC), zone).astimezone(zone)

    def preview(self, n: int, after: datetime | None = None) -> list[datetime]:
        """The next `n` times, after now unless told otherwise."""
        at = after if after is not None else datetime.now(self.tz or UTC)
        times = []
        for _ in range(n):
            at = self.next_after(at)
            times.append(at)
        return times

    def _wall_after(self, wall: datetime) -> datetime:
        sim = copy.copy(self._sim)
        sim.dt = wall.replace(microsecond=0, tzinfo=None)
        try:
            return next(sim)
        except (StopIteration, OverflowError) as never:
            raise CronError(f"cron expression {self.expr!r} names no time that ever comes") from never

    def _instant_after(self, after: datetime, zone: tzinfo) -> datetime:
        """Walks through stretches of constant offset; in each, wall-clock time and real time run alike."""
        at, is_included = after.replace(microsecond=0), False
        for _ in range(_MAX_HOPS):
            offset = _offset(at, zone)
            wall = (at + offset).replace(tzinfo=None)
            match = self._wall_after(wall - _SECOND if is_included else wall)
            found = match.replace(tzinfo=UTC) - offset
            change = _first_change(at, min(found, at + _DAY), zone)
            if change is not None:
                shift = _offset(change, zone) - offset
                skipped_until = (change + offset + shift).replace(tzinfo=None)
                if not self._is_rhythm and match < skipped_until:
                    return change
                at, is_included = change, True
            elif found - at > _DAY:
                at, is_included = max(at + _DAY, found - _DAY), False
            elif not self._is_rhythm and found.astimezone(zone).fold:
                at, is_included = found, False
            else:
                return found
        raise CronError(f"cron expression {self.expr!r} names no time that ever comes")


def _zone(tz: str | tzinfo | None) -> tzinfo | None:
    if not isinstance(tz, str):
        return tz
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
        raise CronError(f"unknown time zone {tz!r}") from unknown


def _offset(at: datetime, zone: tzinfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _first_change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """The first second in (start, end] with another offset than `start`; both at most a day apart."""
    before = _offset(start, zone)
    if end <= start or _offset(end, zone) == before:
        return None
    low, high = 0, int((end - start) / _SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(start + middle * _SECOND, zone) == before:
            low = middle
        else:
            high = middle
    return start + high * _SECOND
