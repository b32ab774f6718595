"""Leases, graces, deaths of workers, retries (CONTRACT.md section 4, rules 3 and 5)."""

from __future__ import annotations

from istos_worker.queue.records import Cancel, JobRef, Lost, Outcome
from tests.unit.queue.fakes import Bench, ref


def test_a_worker_whose_token_is_up_keeps_its_job_for_ever() -> None:
    bench = Bench(lease_s=10)
    bench.state.worker_up("w", bench.now)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]

    bench.sleep(86400)

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)


def test_a_token_that_appears_after_the_claim_holds_the_job_too() -> None:
    bench = Bench(lease_s=10)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]
    bench.sleep(9)
    bench.state.worker_up("w", bench.now)

    bench.sleep(100)

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)


def test_a_token_back_within_the_grace_loses_nothing() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]

    bench.state.worker_down("w", bench.now)
    bench.sleep(4.9)
    bench.state.worker_up("w", bench.now)
    bench.sleep(1000)

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)


def test_a_token_gone_past_the_grace_gives_the_job_back_with_a_reason() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]

    bench.state.worker_down("w", bench.now)
    effects = bench.sleep(5.1)

    assert effects.orders == [("w", Lost(delivery.job_id, delivery.fence))]
    again = bench.take()
    assert (again.attempt, again.crashes) == (2, 1)
    assert again.last_error is not None
    assert again.last_error.startswith("worker lost: ")


def test_the_grace_is_never_longer_than_the_lease() -> None:
    bench = Bench(lease_s=2)
    bench.state.worker_up("w", bench.now)
    bench.add(), bench.take(worker="w", seq=1)
    bench.state.worker_down("w", bench.now)

    bench.sleep(2.1)

    assert bench.counts() == {"ready": 1}


def test_an_extend_of_a_missing_worker_keeps_its_jobs() -> None:
    bench = Bench(lease_s=30)
    bench.state.worker_up("w", bench.now)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]
    bench.state.worker_down("w", bench.now)
    bench.sleep(4)

    assert bench.state.extend([ref(delivery)], bench.now) == ([], [])
    bench.sleep(29)
    assert bench.counts() == {"leased": 1}
    bench.sleep(2)

    assert bench.counts() == {"ready": 1}


def test_a_missing_worker_s_parked_claim_gets_nothing_until_it_is_back() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    waiter = bench.park(worker="w", seq=1, wait_s=60)
    bench.state.worker_down("w", bench.now)

    bench.add()
    assert waiter.answers == []
    bench.state.worker_up("w", bench.now)
    bench.turn()

    assert len(waiter.answers[0]) == 1


def test_a_claim_without_a_token_has_its_lease_and_no_more() -> None:
    bench = Bench(lease_s=10, max_attempts=2)
    bench.add()
    bench.take()
    bench.sleep(9.9)
    assert bench.counts() == {"leased": 1}
    bench.sleep(0.2)
    assert bench.counts() == {"ready": 1}

    bench.take()
    bench.sleep(10.1)

    (letter,) = bench.state.dead_letters().jobs
    assert letter.attempts == 2
    assert letter.last_error is not None
    assert letter.last_error.startswith("lease expired")


def test_steps_of_the_wall_clock_move_no_lease() -> None:
    bench = Bench(lease_s=10)
    bench.add(), bench.take()

    for step in (7200.0, -20_000.0):
        bench.wall += step
        bench.turn()
        assert bench.counts() == {"leased": 1}


def test_a_buried_worker_s_running_job_is_charged_and_its_others_are_not() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    running, waiting = bench.add(), bench.add()
    bench.claim(2, worker="w", seq=1)

    reason = "SIGKILL, likely out of memory, 3.9 GiB"
    assert bench.state.bury("w", reason, frozenset({running}), bench.now) == [running, waiting]

    first, second = bench.claim(2)
    assert (first.job_id, first.attempt, first.crashes) == (running, 2, 1)
    assert first.last_error == f"worker lost: {reason}"
    assert (second.job_id, second.attempt, second.last_error) == (waiting, 1, None)


def test_a_burial_without_a_reason_leaves_one() -> None:
    bench = Bench(crash_budget=1)
    bench.add(), bench.take(worker="w", seq=1)

    bench.state.bury("w", "  ", None, bench.now)

    assert bench.state.dead_letters().jobs[0].last_error == "worker lost: reason unknown"


def test_a_claim_still_under_way_from_a_buried_worker_strands_no_job() -> None:
    bench = Bench()
    bench.add()
    bench.state.bury("w", "SIGSEGV", None, bench.now)

    assert bench.claim(worker="w", seq=9) == []
    assert bench.counts() == {"ready": 1}


def test_deaths_of_workers_have_a_budget_of_their_own() -> None:
    bench = Bench(max_attempts=1, crash_budget=3)
    bench.add()
    for death in range(3):
        assert bench.take(worker=f"w{death}", seq=1).attempt == death + 1
        bench.state.bury(f"w{death}", "SIGKILL", None, bench.now)
        bench.turn()

    (letter,) = bench.state.dead_letters().jobs
    assert letter.last_error == "worker lost: SIGKILL"
    assert len(letter.history) == 3


def test_a_death_does_not_use_up_an_attempt() -> None:
    bench = Bench(max_attempts=2)
    bench.add()
    bench.take(worker="w", seq=1)
    bench.state.bury("w", "SIGKILL", None, bench.now)

    assert bench.state.nack(ref(bench.take()), bench.now, error="1").disposition == "requeued"
    bench.turn()
    assert bench.state.nack(ref(bench.take()), bench.now, error="2").disposition == "dead"


def test_after_a_restart_a_job_stays_with_a_holder_whose_token_comes_back() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    delivery = (bench.add(), bench.take(worker="w", seq=1))[1]

    bench.restart(down_s=600)
    bench.sleep(4)
    bench.state.worker_up("w", bench.now)
    bench.sleep(600)

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)


def test_after_a_restart_a_holder_that_stays_away_loses_its_job() -> None:
    bench = Bench()
    bench.state.worker_up("w", bench.now)
    bench.add(), bench.take(worker="w", seq=1)

    bench.restart()
    bench.sleep(5.1)

    assert bench.take().crashes == 1


def test_after_a_restart_a_nameless_holder_has_what_is_left_of_its_lease() -> None:
    bench = Bench(lease_s=30)
    bench.add(), bench.take()
    bench.restart(down_s=10)
    bench.sleep(19)
    assert bench.counts() == {"leased": 1}

    bench.sleep(2)

    assert bench.counts() == {"ready": 1}


def test_a_stepped_clock_over_a_restart_gives_a_lease_neither_nothing_nor_more_than_itself() -> None:
    for step in (-86400.0, 86400.0):
        bench = Bench(lease_s=30)
        bench.add(), bench.take()
        bench.wall += step
        bench.restart()
        bench.sleep(4.9)
        assert bench.counts() == {"leased": 1}
        bench.sleep(26)
        assert bench.counts() == {"ready": 1}


def test_retries_wait_twice_as_long_each_time_up_to_a_cap() -> None:
    bench = Bench(retry_backoff_s=2, retry_backoff_max_s=7, max_attempts=9)
    bench.add()
    waits = []
    for _ in range(4):
        bench.state.nack(ref(bench.take()), bench.now, error="x")
        bench.turn()
        due = bench.state.next_due()
        assert due is not None
        waits.append(due - bench.mono)
        bench.sleep(waits[-1])

    assert waits == [2, 4, 7, 7]


def test_jitter_spreads_retries_by_its_share() -> None:
    for drawn, expected in ((0.0, 9.0), (0.5, 10.0), (1.0, 11.0)):
        bench = Bench(retry_backoff_s=10, retry_jitter=0.1)
        bench.state._ledger.random = lambda drawn=drawn: drawn  # type: ignore[misc]
        bench.add()
        bench.state.nack(ref(bench.take()), bench.now, error="x")
        due = bench.state.next_due()
        assert due is not None
        assert round(due - bench.mono, 6) == expected


def test_a_failure_may_name_its_own_delay() -> None:
    bench = Bench(retry_backoff_s=100)
    bench.add()
    bench.state.nack(ref(bench.take()), bench.now, error="x", retry_after_s=3)
    bench.sleep(2.9)
    assert bench.counts() == {"delayed": 1}

    bench.sleep(0.2)

    assert bench.take().last_error == "x"


def test_a_discarded_job_is_dead_at_its_first_attempt() -> None:
    bench = Bench()
    bench.add()

    outcome = bench.state.nack(ref(bench.take()), bench.now, error="no such user", discard=True)

    assert outcome == Outcome(True, False, "dead")
    assert bench.state.dead_letters().jobs[0].last_error == "no such user"


def test_a_job_may_have_its_own_number_of_attempts() -> None:
    bench = Bench(max_attempts=5)
    bench.add(max_attempts=1)

    assert bench.state.nack(ref(bench.take()), bench.now, error="x").disposition == "dead"


def test_cancelling_a_running_job_asks_its_holder() -> None:
    bench = Bench()
    job_id = bench.add()
    delivery = bench.take(worker="w", seq=1)

    assert bench.state.cancel(job_id, bench.now) == (True, "leased")
    assert bench.turn().orders == [("w", Cancel(job_id, delivery.fence))]
    assert bench.state.extend([ref(delivery)], bench.now).cancelled == [job_id]
    assert bench.state.cancelled(ref(delivery), bench.now).disposition == "cancelled"

    assert bench.job_state(job_id) == "cancelled"


def test_a_job_to_be_cancelled_is_not_delivered_again_whatever_its_holder_does() -> None:
    def nack(bench: Bench, delivery: JobRef) -> None:
        bench.state.nack(delivery, bench.now, error="x")

    def release(bench: Bench, delivery: JobRef) -> None:
        bench.state.release(delivery, bench.now)

    def die(bench: Bench, delivery: JobRef) -> None:
        bench.state.bury("w", "SIGKILL", None, bench.now)

    def vanish(bench: Bench, delivery: JobRef) -> None:
        bench.sleep(31)

    for end in (nack, release, die, vanish):
        bench = Bench()
        job_id = bench.add()
        delivery = bench.take(worker="w", seq=1)
        bench.state.cancel(job_id, bench.now)
        bench.turn()

        bench.restart()
        end(bench, ref(delivery))

        assert bench.job_state(job_id) == "cancelled", end.__name__


def test_a_claim_that_was_under_way_when_its_worker_died_holds_a_job_for_one_grace() -> None:
    bench = Bench(lease_s=30)
    bench.state.worker_up("w", bench.now)
    bench.state.worker_down("w", bench.now)
    bench.add()
    bench.take(worker="w", seq=1)

    bench.sleep(5.1)

    assert bench.counts() == {"ready": 1}
