"""When schedules fire (CONTRACT.md section 4, rule 11)."""

# ruff: noqa: DTZ001 - naive wall-clock times are part of what is promised

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from istos_worker.queue.cron import CronError, CronSchedule
from istos_worker.scheduling.ticks import CatchUp, Every, Rhythm, tick_name, tick_time, ticks_due


def times(expr: str, tz: str | None, after: str, n: int) -> list[str]:
    return [at.isoformat() for at in CronSchedule(expr, tz).preview(n, datetime.fromisoformat(after))]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("*/20 * * * *", ["2026-02-01T00:20:00", "2026-02-01T00:40:00", "2026-02-01T01:00:00"]),
        ("5-7,30 3 * * *", ["2026-02-01T03:05:00", "2026-02-01T03:06:00", "2026-02-01T03:07:00"]),
        ("0 0 * * 7", ["2026-02-08T00:00:00", "2026-02-15T00:00:00", "2026-02-22T00:00:00"]),
        ("0 0 * * sun", ["2026-02-08T00:00:00", "2026-02-15T00:00:00", "2026-02-22T00:00:00"]),
        ("0 0 * * FRI-SUN", ["2026-02-06T00:00:00", "2026-02-07T00:00:00", "2026-02-08T00:00:00"]),
        ("0 0 1 jan,JUL *", ["2026-07-01T00:00:00", "2027-01-01T00:00:00", "2027-07-01T00:00:00"]),
        ("0 0 13 * 5", ["2026-02-06T00:00:00", "2026-02-13T00:00:00", "2026-02-20T00:00:00"]),
        ("0 0 L * *", ["2026-02-28T00:00:00", "2026-03-31T00:00:00", "2026-04-30T00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00", "2032-02-29T00:00:00", "2036-02-29T00:00:00"]),
        ("@daily", ["2026-02-02T00:00:00", "2026-02-03T00:00:00", "2026-02-04T00:00:00"]),
    ],
)
def test_expressions_mean_what_cron_s_users_expect(expr: str, expected: list[str]) -> None:
    assert times(expr, None, "2026-02-01T00:00:00", 3) == expected


def test_the_29th_of_february_resolves_across_eight_years_without_one() -> None:
    assert times("0 12 29 2 *", "UTC", "2096-03-01", 1) == ["2104-02-29T12:00:00+00:00"]


@pytest.mark.parametrize(
    "expr",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "x * * * *",
        *["*/0 * * * *", "5-1 * * * *", "0 0 30 2 *", "0 0 31 4,6 *", "1,,2 * * * *", "-1 * * * *", "@never"],
    ],
)
def test_an_expression_that_names_no_time_is_refused(expr: str) -> None:
    with pytest.raises(CronError):
        CronSchedule(expr)
    assert issubclass(CronError, ValueError)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(CronError, match="Mars/Olympus"):
        CronSchedule("* * * * *", "Mars/Olympus")


def test_the_next_time_is_strictly_after_and_on_the_minute() -> None:
    schedule = CronSchedule("* * * * *")
    assert schedule.next_after(datetime(2026, 1, 1, 0, 0)) == datetime(2026, 1, 1, 0, 1)
    assert schedule.next_after(datetime(2026, 1, 1, 0, 0, 59, 999_999)) == datetime(2026, 1, 1, 0, 1)


def test_an_aware_datetime_s_own_zone_counts_when_the_schedule_has_none() -> None:
    zone = ZoneInfo("Asia/Tokyo")

    at = CronSchedule("0 9 * * *").next_after(datetime(2026, 1, 1, 12, tzinfo=zone))

    assert at.isoformat() == "2026-01-02T09:00:00+09:00"


SKIPPED = [
    (
        "30 2 * * *",
        "America/New_York",
        "2026-03-08T00:00",
        ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"],
    ),
    (
        "*/15 2 * * *",
        "America/New_York",
        "2026-03-08T00:00",
        ["2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"],
    ),
    (
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-04T00:00",
        ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
    ),
    (
        "0 0 * * *",
        "America/Sao_Paulo",
        "2018-11-03T12:00",
        ["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"],
    ),
    (
        "0 12 * * *",
        "Pacific/Apia",
        "2011-12-29T13:00",
        ["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"],
    ),
]


@pytest.mark.parametrize(("expr", "tz", "after", "expected"), SKIPPED)
def test_a_skipped_time_fires_once_right_after_the_gap(
    expr: str, tz: str, after: str, expected: list[str]
) -> None:
    assert times(expr, tz, after, 2) == expected


REPEATED_FIXED = [
    (
        "30 1 * * *",
        "America/New_York",
        "2026-11-01T00:00",
        ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
    ),
    (
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-05T00:00",
        ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
    ),
    (
        "30 23 * * *",
        "America/Sao_Paulo",
        "2018-02-17T12:00",
        ["2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"],
    ),
]


@pytest.mark.parametrize(("expr", "tz", "after", "expected"), REPEATED_FIXED)
def test_a_repeated_fixed_time_fires_once(expr: str, tz: str, after: str, expected: list[str]) -> None:
    assert times(expr, tz, after, 2) == expected


REPEATED_WILD = [
    (
        "30 * * * *",
        "America/New_York",
        "2026-11-01T01:00",
        ["01:30:00-04:00", "01:30:00-05:00", "02:30:00-05:00"],
    ),
    (
        "45 * * * *",
        "Australia/Lord_Howe",
        "2026-04-05T01:00",
        ["01:45:00+11:00", "01:45:00+10:30", "02:45:00+10:30"],
    ),
    (
        "30 * * * *",
        "America/Sao_Paulo",
        "2018-02-17T23:00",
        ["23:30:00-02:00", "23:30:00-03:00", "00:30:00-03:00"],
    ),
]


@pytest.mark.parametrize(("expr", "tz", "after", "expected"), REPEATED_WILD)
def test_a_wildcard_hour_fires_every_time(expr: str, tz: str, after: str, expected: list[str]) -> None:
    assert [at.partition("T")[2] for at in times(expr, tz, after, 3)] == expected


def test_a_wildcard_hour_keeps_its_rhythm_over_a_gap() -> None:
    zone = ZoneInfo("America/New_York")
    schedule = CronSchedule("30 * * * *", zone)
    at = datetime(2026, 3, 7, 20, tzinfo=zone)
    steps = set()
    for _ in range(20):
        following = schedule.next_after(at)
        steps.add(following.astimezone(UTC) - at.astimezone(UTC))
        at = following

    assert steps <= {timedelta(hours=1), timedelta(minutes=30)}


def test_asking_in_the_second_pass_of_a_repeated_hour_does_not_fire_a_fixed_time_again() -> None:
    zone = ZoneInfo("America/New_York")
    in_second_pass = datetime(2026, 11, 1, 1, 10, tzinfo=zone, fold=1)

    at = CronSchedule("30 1 * * *", zone).next_after(in_second_pass)

    assert at.isoformat() == "2026-11-02T01:30:00-05:00"


ZONES = ["America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Europe/Dublin", "Africa/Casablanca"]


@settings(max_examples=150, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    expr=st.sampled_from(
        ["*/30 * * * *", "0 */3 * * *", "15 2 * * *", "30 0,1,2,3 * * *", "0 0 1 * *", "0 3 * * 0"]
    ),
    start=st.datetimes(datetime(2005, 1, 1), datetime(2030, 1, 1)),
)
@example(zone="Africa/Casablanca", expr="15 2 * * *", start=datetime(2016, 10, 29, 2))
def test_times_only_ever_rise_and_none_is_left_out(zone: str, expr: str, start: datetime) -> None:
    schedule = CronSchedule(expr, zone)
    after = start.replace(tzinfo=UTC)

    first, second = (at.astimezone(UTC) for at in schedule.preview(2, after))

    assert after < first < second
    # In UTC: a time that its zone has twice equals none of another zone (PEP 495).
    assert schedule.next_after(after + (first - after) / 3).astimezone(UTC) == first
    assert schedule.next_after(first - timedelta(seconds=1)).astimezone(UTC) == first


# ticks

NOW = datetime(2026, 1, 1, 0, 10, 30, tzinfo=UTC)
MINUTES = CronSchedule("* * * * *", "UTC")


def minute(number: int) -> str:
    return f"2026-01-01T00:{number:02d}:00.000Z"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", [10]), ("once", [10]), ("all", list(range(1, 11)))],
)
def test_ten_missed_ticks_under_each_policy_with_the_last_one_just_due(
    policy: CatchUp, expected: list[int]
) -> None:
    assert ticks_due(MINUTES, minute(0), NOW, policy) == [minute(number) for number in expected]


@pytest.mark.parametrize(("policy", "expected"), [("skip", 0), ("once", 1), ("all", 10)])
def test_ten_missed_ticks_under_each_policy_long_after(policy: CatchUp, expected: int) -> None:
    daily = CronSchedule("0 0 * * *", "UTC")
    now = datetime(2026, 1, 11, 12, tzinfo=UTC)

    assert len(ticks_due(daily, minute(0), now, policy)) == expected


def test_a_restart_within_the_due_minute_fires_the_tick_that_was_not_fired() -> None:
    assert ticks_due(MINUTES, minute(9), NOW) == [minute(10)]
    assert ticks_due(MINUTES, minute(10), NOW) == []


def test_a_new_schedule_owes_nothing_from_before_it_was_followed() -> None:
    assert ticks_due(MINUTES, None, NOW, "all") == []
    assert ticks_due(MINUTES, None, NOW, "all", since=NOW - timedelta(minutes=2)) == [minute(9), minute(10)]


def test_catching_up_is_capped_at_the_newest() -> None:
    due = ticks_due(MINUTES, "2020-01-01T00:00:00.000Z", NOW, "all", cap=5)

    assert due == [minute(number) for number in range(6, 11)]


def test_an_interval_s_ticks_are_the_same_for_everyone() -> None:
    every: Rhythm = Every(every_s=7)

    assert ticks_due(every, tick_name(NOW - timedelta(seconds=15)), NOW, "all") == [
        "2026-01-01T00:10:16.000Z",
        "2026-01-01T00:10:23.000Z",
        "2026-01-01T00:10:30.000Z",
    ]


@given(
    every_s=st.sampled_from([0.001, 0.01, 0.1, 0.3, 1.0, 2.5, 7.0, 60.0, 86400.0]), start=st.floats(0, 4e9)
)
def test_an_interval_never_stands_still(every_s: float, start: float) -> None:
    every = Every(every_s=every_s)
    at = datetime.fromtimestamp(start, UTC)

    first = every.next_after(at)
    second = every.next_after(first)

    assert at < first < second
    assert tick_name(first) < tick_name(second)


def test_a_tick_s_name_says_its_time() -> None:
    assert tick_time(tick_name(NOW)) == NOW
    assert tick_name(NOW.astimezone(ZoneInfo("Asia/Tokyo"))) == tick_name(NOW)


@pytest.mark.parametrize("every_s", [0, -1, float("nan"), float("inf")])
def test_an_interval_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="every_s"):
        Every(every_s=every_s)
