"""When a slot is filled again and when a fleet gives up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.exits import ExitCode
from supervisor.ledger import Ledger
from supervisor.restart import SlotHistory, after_death, after_leave, boots_exhausted, delay_s
from supervisor.settings import Restarts

POLICY = Restarts()


def crash(history: SlotHistory, *, now: float = 0.0, ready_for_s: float | None = 1.0) -> SlotHistory:
    return after_death(history, ready_for_s=ready_for_s, now=now, policy=POLICY)


def exit_code(ledger: Ledger) -> int | None:
    return None if ledger.verdict is None else ledger.verdict.exit_code


def test_the_first_death_is_answered_at_once_and_the_next_ones_ever_later() -> None:
    assert [delay_s(deaths, POLICY) for deaths in range(9)] == [
        0.0,
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        30.0,
        30.0,
    ]


def test_a_minute_of_health_forgives_everything() -> None:
    history = crash(crash(crash(SlotHistory())))

    after = crash(history, now=100.0, ready_for_s=60.0)

    assert (after.deaths, after.crashes, after.not_before) == (1, 1, 100.0)


def test_a_worker_told_to_leave_before_it_was_healthy_forgives_nothing() -> None:
    history = crash(SlotHistory())

    assert after_leave(history, ready_for_s=1.0, policy=POLICY) == history
    assert after_leave(history, ready_for_s=61.0, policy=POLICY) == SlotHistory()


@given(st.lists(st.one_of(st.none(), st.floats(0, 200)), max_size=30))
def test_only_boots_in_a_row_count_as_failed_boots(lives: list[float | None]) -> None:
    history = SlotHistory()
    for life in lives:
        history = crash(history, ready_for_s=life)

    trailing = 0
    for life in reversed(lives):
        if life is not None:
            break
        trailing += 1
    assert history.failed_boots == trailing
    assert boots_exhausted(history, POLICY) == (trailing >= 5)


@given(st.integers(0, 10_000))
def test_no_wait_is_longer_than_the_longest(deaths: int) -> None:
    assert 0.0 <= delay_s(deaths, POLICY) <= 30.0


def test_ten_crashes_of_one_slot_conclude_with_5() -> None:
    ledger = Ledger(policy=POLICY)

    for _ in range(9):
        ledger.died(3, ready_for_s=1.0, now=0.0, others_ready=True)
    assert exit_code(ledger) is None
    ledger.died(3, ready_for_s=1.0, now=0.0, others_ready=True)

    assert exit_code(ledger) == ExitCode.CRASH_LOOP


def test_crashes_of_different_slots_do_not_add_up() -> None:
    ledger = Ledger(policy=POLICY)

    for slot in range(20):
        ledger.died(slot, ready_for_s=1.0, now=0.0, others_ready=False)

    assert ledger.verdict is None


def test_five_failed_boots_conclude_with_3_unless_somebody_is_ready() -> None:
    ledger = Ledger(policy=POLICY)

    for _ in range(7):
        ledger.died(0, ready_for_s=None, now=0.0, others_ready=True)
    assert exit_code(ledger) is None
    ledger.died(0, ready_for_s=None, now=0.0, others_ready=False)

    assert exit_code(ledger) == ExitCode.NO_BOOT


def test_the_first_verdict_is_kept() -> None:
    ledger = Ledger(policy=Restarts(crashes=1))

    ledger.died(0, ready_for_s=1.0, now=0.0, others_ready=False)
    ledger.died(1, ready_for_s=1.0, now=0.0, others_ready=False)

    assert ledger.verdict is not None
    assert "slot 0" in ledger.verdict.reason
