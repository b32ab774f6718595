"""Recurring jobs: each tick once, whoever restarts, and missed ones by policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from istos_worker.errors import NotFoundError, OwnerUnreachable
from istos_worker.scheduling.beat import _Pulse
from istos_worker.scheduling.plan import Schedule, make_schedule, tick_job_id
from istos_worker.scheduling.ticks import CatchUp, tick_name

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class Owner:
    """Takes each tick once, as our owner does."""

    def __init__(self, *, remembers: bool = True) -> None:
        self.fired: list[str] = []
        self.ids: set[str] = set()
        self.away = False
        self._remembers = remembers

    async def enqueue(self, prefix: str, data: Any, **told: Any) -> str:
        if self.away:
            raise OwnerUnreachable("away")
        if told["tick"] > (self.fired or [""])[-1]:
            self.fired.append(told["tick"])
            self.ids.add(told["job_id"])
        return str(told["job_id"])

    async def last_tick(self, prefix: str, schedule: str, *, token: Any = None) -> str | None:
        if self.away:
            raise OwnerUnreachable("away")
        if not self._remembers:
            raise NotFoundError("an istos 0.3 node")
        return self.fired[-1] if self.fired else None


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **by: float) -> None:
        self.now += timedelta(**by)


def schedule(**told: Any) -> Schedule:
    return make_schedule(
        "jobs/a",
        told.pop("data", 1),
        b"1",
        every_s=told.pop("every_s", None),
        cron=told.pop("cron", None),
        initial_delay_s=told.pop("initial_delay_s", None),
        tz=told.pop("tz", "UTC"),
        catch_up=told.pop("catch_up", "skip"),
        name=told.pop("name", "s"),
        priority=0,
        serializer=None,
        token=None,
    )


def pulse(of: Schedule, owner: Owner, clock: Clock) -> _Pulse:
    return _Pulse(of, owner, lambda _: True, clock)


def times(owner: Owner) -> list[str]:
    return [tick[11:19] for tick in owner.fired]


async def test_an_interval_fires_after_its_delay_and_then_regularly() -> None:
    owner, clock = Owner(), Clock()
    beat = pulse(schedule(every_s=10, initial_delay_s=3), owner, clock)

    assert await beat.step() == 3
    clock.forward(seconds=3)
    assert await beat.step() == 10
    clock.forward(seconds=10)
    await beat.step()

    assert times(owner) == ["12:00:03", "12:00:13"]


async def test_a_delay_of_nothing_fires_at_once() -> None:
    owner, clock = Owner(), Clock()

    await pulse(schedule(every_s=86400, initial_delay_s=0), owner, clock).step()

    assert times(owner) == ["12:00:00"]


async def test_replicas_fire_each_tick_once() -> None:
    owner, clock = Owner(), Clock()
    first = pulse(schedule(every_s=10), owner, clock)
    clock.forward(seconds=4)
    second = pulse(schedule(every_s=10), owner, clock)

    for _ in range(40):
        await first.step()
        await second.step()
        clock.forward(seconds=1)

    assert times(owner) == ["12:00:10", "12:00:20", "12:00:30", "12:00:40"]
    assert len(owner.ids) == 4


async def test_a_restart_goes_on_where_it_was() -> None:
    owner, clock = Owner(), Clock()
    for _ in range(25):
        await pulse(schedule(every_s=10, initial_delay_s=0), owner, clock).step()
        clock.forward(seconds=1)

    assert times(owner) == ["12:00:00", "12:00:10", "12:00:20"]


@pytest.mark.parametrize(
    ("catch_up", "caught_up"),
    [
        ("skip", []),
        ("once", ["13:50:00"]),
        ("all", [f"{hour}:{minute:02}:00" for hour in (12, 13) for minute in range(0, 60, 10)][2:]),
    ],
)
async def test_ten_missed_ticks_are_dealt_with_by_policy(catch_up: CatchUp, caught_up: list[str]) -> None:
    owner, clock = Owner(), Clock()
    every_ten_minutes = schedule(cron="*/10 * * * *", catch_up=catch_up)
    before = pulse(every_ten_minutes, owner, clock)
    clock.forward(minutes=10)
    await before.step()

    clock.forward(minutes=105)  # 13:55
    after = pulse(every_ten_minutes, owner, clock)
    assert await after.step() == 30.0  # it looks at the clock again, though the next tick is minutes away
    clock.forward(minutes=5)
    await after.step()

    assert times(owner) == ["12:10:00", *caught_up, "14:00:00"]


async def test_a_restart_within_the_due_minute_loses_nothing() -> None:
    owner, clock = Owner(), Clock()
    owner.fired.append(tick_name(START))
    clock.forward(hours=1, seconds=40)

    await pulse(schedule(cron="0 * * * *"), owner, clock).step()

    assert times(owner) == ["12:00:00", "13:00:00"]


async def test_an_owner_that_is_away_gets_the_tick_when_it_is_back() -> None:
    owner, clock = Owner(), Clock()
    beat = pulse(schedule(every_s=10, initial_delay_s=0), owner, clock)
    owner.away = True
    with pytest.raises(OwnerUnreachable):
        await beat.step()
    owner.away = False
    clock.forward(seconds=5)

    await beat.step()

    assert times(owner) == ["12:00:00"]


async def test_an_owner_that_remembers_no_ticks_is_served_too() -> None:
    owner, clock = Owner(remembers=False), Clock()
    beat = pulse(schedule(every_s=10), owner, clock)
    for _ in range(21):
        await beat.step()
        clock.forward(seconds=1)

    assert times(owner) == ["12:00:10", "12:00:20"]


async def test_only_the_active_owner_fires() -> None:
    owner, clock = Owner(), Clock()
    beat = _Pulse(schedule(every_s=1, initial_delay_s=0), owner, lambda _: False, clock)

    await beat.step()

    assert owner.fired == []


def test_a_preview_tells_the_next_times() -> None:
    daily = schedule(cron="30 2 * * *", tz="Europe/Berlin")

    previewed = daily.preview(2, after=START)

    assert [at.astimezone(UTC).isoformat() for at in previewed] == [
        "2026-01-02T01:30:00+00:00",
        "2026-01-03T01:30:00+00:00",
    ]
    assert schedule(every_s=5).preview(2, after=START) == [
        START + timedelta(seconds=5),
        START + timedelta(seconds=10),
    ]


def test_a_ticks_job_id_is_one_that_owners_take() -> None:
    made = tick_job_id("any name: even *this*", tick_name(START))

    assert made == tick_job_id("any name: even *this*", tick_name(START))
    assert len(made) <= 64
    assert set(made) <= set("0123456789abcdefTZ.-")


def test_the_same_declaration_has_the_same_name_everywhere() -> None:
    assert schedule(every_s=5, name=None).name == schedule(every_s=5, name=None).name
    assert schedule(every_s=5, name=None).name != schedule(every_s=6, name=None).name
