from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from istos_worker.worker.prefetch import Prefetch


def prefetch(*durations_s: float, limit: int = 128) -> Prefetch:
    made = Prefetch(within_s=0.05, limit=limit)
    for duration_s in durations_s:
        made.ran(duration_s)
    return made


def test_nothing_is_claimed_ahead_before_anything_is_known() -> None:
    assert prefetch().ahead(8) == 0


def test_short_jobs_are_claimed_ahead_as_far_as_they_start_in_time() -> None:
    assert prefetch(*[0.0099] * 50).ahead(2) == 10
    assert prefetch(*[0.00002] * 50).ahead(8) == 128


def test_long_jobs_are_not_claimed_ahead() -> None:
    assert prefetch(*[1.0] * 50).ahead(8) == 0


def test_slots_that_are_stuck_do_not_count() -> None:
    assert prefetch(*[0.01] * 50).ahead(0) == 0


def test_one_long_job_among_short_ones_is_soon_forgotten() -> None:
    assert prefetch(*[0.01] * 50, 60.0, *[0.01] * 20).ahead(2) >= 8


def test_among_jobs_that_saw_a_worker_die_one_is_claimed_ahead_for_each_slot() -> None:
    made = prefetch(*[0.00002] * 50)
    made.is_among_crashed = True

    assert made.ahead(8) == 8


def test_trust_is_lost_quickly_and_comes_back_slowly() -> None:
    made = prefetch(*[0.001] * 50)
    before = made.ahead(1)
    made.overrated()
    assert made.ahead(1) == before // 2
    for _ in range(4):
        made.proved()
    assert made.ahead(1) == before


@given(st.lists(st.floats(0, 1e6), max_size=50), st.lists(st.booleans(), max_size=50), st.integers(0, 1000))
def test_the_number_is_always_between_nothing_and_the_limit(
    durations_s: list[float], starts: list[bool], slots: int
) -> None:
    made = prefetch(*durations_s, limit=64)
    for in_time in starts:
        (made.proved if in_time else made.overrated)()

    assert 0 <= made.ahead(slots) <= 64
