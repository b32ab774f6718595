"""Nobody is late who was asleep with us."""

from __future__ import annotations

from supervisor import patience


def test_a_normal_look_keeps_the_time_awake() -> None:
    begun = patience.begin(100.0, 100.0)

    looked = patience.look(begun, now=101.0, boottime=101.0, at_most_every_s=3.0)

    assert (looked.awake_since, looked.slept_s) == (100.0, 0.0)


def test_a_gap_between_looks_starts_the_time_awake_again() -> None:
    begun = patience.begin(100.0, 100.0)

    looked = patience.look(begun, now=110.0, boottime=110.0, at_most_every_s=3.0)

    assert (looked.awake_since, looked.slept_s) == (110.0, 10.0)


def test_a_suspend_is_seen_by_the_clock_that_runs_through_it() -> None:
    begun = patience.begin(100.0, 150.0)

    looked = patience.look(begun, now=100.5, boottime=7350.5, at_most_every_s=3.0)
    later = patience.look(looked, now=101.5, boottime=7351.5, at_most_every_s=3.0)

    assert looked.awake_since == later.awake_since == 100.5
    assert later.slept_s == 0.0
