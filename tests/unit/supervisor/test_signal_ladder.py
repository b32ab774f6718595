"""What a stop signal means, given those before it."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ladder import Ladder, Rung, climb, fresh

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
Times = list[tuple[int, float]]


def climbed(*signals: tuple[int, float]) -> Rung:
    ladder = Ladder()
    for signum, now in signals:
        ladder = climb(ladder, signum, now)
    return ladder.rung


@pytest.mark.parametrize(
    ("signals", "rung"),
    [
        ([(signal.SIGTERM, 0.0)], Rung.DRAIN),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.9)], Rung.DRAIN),
        ([(signal.SIGTERM, 0.0), (signal.SIGINT, 0.1)], Rung.DRAIN),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 1.0)], Rung.HAND_BACK),
        ([(signal.SIGTERM, 0.0), (signal.SIGINT, 1.5), (signal.SIGTERM, 2.5)], Rung.KILL),
        ([(signal.SIGQUIT, 0.0)], Rung.HAND_BACK),
        ([(signal.SIGTERM, 0.0), (signal.SIGQUIT, 0.1)], Rung.HAND_BACK),
        ([(signal.SIGQUIT, 0.0), (signal.SIGTERM, 0.5)], Rung.HAND_BACK),
        ([(signal.SIGQUIT, 0.0), (signal.SIGTERM, 1.5)], Rung.KILL),
    ],
)
def test_rungs(signals: Times, rung: Rung) -> None:
    assert climbed(*signals) == rung


@given(st.lists(st.tuples(st.sampled_from(STOPS), st.floats(0, 2)), max_size=20))
def test_a_ladder_only_climbs_and_takes_two_seconds_to_a_kill(steps: Times) -> None:
    ladder, now = Ladder(), 0.0
    for signum, after_s in steps:
        now += after_s
        before, ladder = ladder, climb(ladder, signum, now)
        assert ladder.rung >= before.rung
        if ladder.rung is Rung.KILL and before.rung is not Rung.KILL:
            assert before.climbed_at is not None
            assert now - before.climbed_at >= 1.0


def test_an_echo_within_a_second_is_not_fresh() -> None:
    ladder, answers = Ladder(), []
    for signum, now in [
        (signal.SIGHUP, 0.0),
        (signal.SIGHUP, 0.5),
        (signal.SIGUSR2, 0.6),
        (signal.SIGHUP, 1.0),
    ]:
        ladder, is_fresh = fresh(ladder, signum, now)
        answers.append(is_fresh)

    assert answers == [True, False, True, True]
    assert ladder.rung is Rung.RUN
