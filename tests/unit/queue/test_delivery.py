"""Order, claims, waiting claims, fencing (CONTRACT.md section 4, rules 2 and 4)."""

from __future__ import annotations

from istos_worker.queue.records import ClaimRequest, JobRef, NewJob, Outcome
from tests.unit.queue.fakes import Bench, FakeWaiter, ref

MAIL = b'{"task":"mail","args":[],"kwargs":{}}'
SCAN = b'{"task":"scan","args":[],"kwargs":{}}'


def test_jobs_leave_by_priority_then_by_age() -> None:
    bench = Bench()
    low, first, second, high = (bench.add(priority=priority) for priority in (-1, 0, 0, 7))

    assert [one.job_id for one in bench.claim(4)] == [high, first, second, low]


def test_order_holds_across_task_names() -> None:
    bench = Bench()
    ids = [bench.add(body) for body in (MAIL, b"plain", SCAN, MAIL)]

    assert [one.job_id for one in bench.claim(4)] == ids


def test_a_released_job_keeps_its_place_and_its_attempts() -> None:
    bench = Bench()
    first, second = bench.add(), bench.add()
    delivery = bench.take()

    assert bench.state.release(ref(delivery), bench.now) == Outcome(True)

    again = bench.take()
    assert (again.job_id, again.attempt) == (first, 1)
    assert again.fence > delivery.fence
    assert bench.take().job_id == second


def test_a_claim_takes_only_tasks_it_can_run() -> None:
    bench = Bench()
    bench.add(SCAN)
    plain = bench.add(b'"plain"')
    mail = bench.add(MAIL)

    assert [one.job_id for one in bench.claim(9, tasks=frozenset({"mail"}))] == [mail]
    assert [one.job_id for one in bench.claim(9, tasks=frozenset({"*"}))] == [plain]
    assert bench.claim(9, tasks=frozenset({"other"})) == []
    assert bench.counts() == {"ready": 1, "leased": 2}


def test_only_a_whole_task_call_counts_as_one() -> None:
    bench = Bench()
    for body in (
        b'{"task":"t"}',
        b'{"task":7,"args":[],"kwargs":{}}',
        b'["task"]',
        b'{"task":',
        b'{"a":"\\"task\\""}',
    ):
        bench.add(body)

    assert len(bench.claim(9, tasks=frozenset({"*"}))) == 5


def test_a_waiting_claim_gets_the_job_in_the_turn_that_brings_it() -> None:
    bench = Bench()
    waiter = bench.park()

    job_id = bench.add()

    assert [[one.job_id for one in answer] for answer in waiter.answers] == [[job_id]]


def test_a_burst_spreads_over_all_waiting_claims() -> None:
    bench = Bench()
    waiters = [bench.park(8, worker=f"w{index}", seq=1) for index in range(4)]

    bench.state.enqueue_many([NewJob(body=b"1") for _ in range(6)], bench.now)
    bench.turn()

    assert [len(waiter.answers[0]) for waiter in waiters] == [2, 2, 1, 1]


def test_a_waiting_claim_for_other_tasks_does_not_stand_in_the_way() -> None:
    bench = Bench()
    mail, anything = bench.park(tasks=frozenset({"mail"})), bench.park()

    bench.add(SCAN)

    assert mail.answers == []
    assert len(anything.answers) == 1


def test_a_waiting_claim_is_answered_with_nothing_when_its_time_is_over() -> None:
    bench = Bench()
    waiter = bench.park(wait_s=20)

    bench.sleep(19.9)
    assert waiter.answers == []
    bench.sleep(0.2)

    assert waiter.answers == [[]]


def test_a_withdrawn_claim_gets_no_job() -> None:
    bench = Bench()
    waiter = bench.park()
    bench.state.withdraw(waiter)

    bench.add()

    assert waiter.answers == []
    assert bench.counts() == {"ready": 1}


def test_a_claim_for_no_job_is_answered_at_once_and_blocks_nobody() -> None:
    bench = Bench()
    nothing = FakeWaiter()
    request = ClaimRequest(n=0, wait_s=9, waiter=nothing)

    assert bench.state.claim(request, bench.now) == []


def test_a_repeated_claim_gets_the_same_jobs() -> None:
    bench = Bench()
    bench.add(), bench.add()
    first = bench.claim(2, worker="w", seq=1)

    assert bench.claim(2, worker="w", seq=1) == first
    assert bench.counts() == {"leased": 2}


def test_a_repeated_claim_gets_the_same_jobs_after_a_restart() -> None:
    bench = Bench()
    bench.add(), bench.add()
    first = bench.claim(2, worker="w", seq=4)

    bench.restart()

    again = bench.claim(2, worker="w", seq=4)
    assert [(one.job_id, one.attempt, one.fence) for one in again] == [
        (one.job_id, one.attempt, one.fence) for one in first
    ]


def test_a_repeated_claim_leaves_out_what_is_finished_meanwhile() -> None:
    bench = Bench()
    bench.add(), bench.add()
    done, held = bench.claim(2, worker="w", seq=1)
    bench.state.ack(ref(done), bench.now)

    assert bench.claim(2, worker="w", seq=1) == [held]


def test_a_repeated_claim_takes_the_place_of_the_parked_one() -> None:
    bench = Bench()
    lost, repeat = bench.park(worker="w", seq=1), bench.park(worker="w", seq=1)

    bench.add()

    assert lost.answers == [[]]
    assert len(repeat.answers[0]) == 1


def test_a_newer_claim_ends_the_parked_one_of_its_worker() -> None:
    bench = Bench()
    old, new = bench.park(worker="w", seq=1), bench.park(worker="w", seq=2)

    assert old.answers == [[]]
    assert new.answers == []


def test_an_old_claim_that_arrives_late_takes_nothing() -> None:
    bench = Bench()
    bench.add()
    bench.state.claim(ClaimRequest(worker="w", seq=7, tasks=frozenset()), bench.now)

    assert bench.claim(worker="w", seq=6) == []
    assert bench.counts() == {"ready": 1}


def test_stale_words_change_nothing_and_are_counted() -> None:
    bench = Bench(lease_s=10)
    job_id = bench.add()
    old = bench.take()
    bench.sleep(11)
    new = bench.take()

    stale = Outcome(False, True)
    assert bench.state.ack(ref(old), bench.now) == stale
    assert bench.state.nack(ref(old), bench.now, error="x") == stale
    assert bench.state.release(ref(old), bench.now) == stale
    assert bench.state.extend([ref(old)], bench.now).lost == [job_id]
    assert bench.state.ack(JobRef(job_id, attempt=old.attempt), bench.now) == stale
    assert bench.state.stats(bench.now).totals["stale"] == 4
    assert bench.state.ack(ref(new), bench.now) == Outcome(True)


def test_a_fence_decides_over_an_attempt() -> None:
    bench = Bench()
    delivery = (bench.add(), bench.take())[1]

    assert bench.state.ack(JobRef(delivery.job_id, 99, delivery.fence), bench.now).ok


def test_a_peer_may_ack_a_job_in_any_live_state_but_nack_only_a_leased_one() -> None:
    bench = Bench()
    job_id = bench.add()

    assert bench.state.nack(JobRef(job_id), bench.now, error="x") == Outcome(False)
    assert bench.state.ack(JobRef(job_id), bench.now) == Outcome(True)


def test_a_repeated_ack_is_ok_also_after_a_restart() -> None:
    bench = Bench()
    delivery = (bench.add(), bench.take())[1]
    bench.state.ack(ref(delivery), bench.now)
    bench.turn()
    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)

    bench.restart()

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(True)
    assert bench.state.ack(JobRef(delivery.job_id, 1, delivery.fence + 1), bench.now) == Outcome(False, True)
    assert bench.state.ack(JobRef("unknown"), bench.now) == Outcome(False)


def test_fences_rise_over_restarts_without_a_write_for_each() -> None:
    bench = Bench()
    fences = []
    for _ in range(5):
        bench.add()
        fences.append(bench.take().fence)
        bench.restart()

    assert fences == sorted(set(fences))
    assert sum("fence" in batch.notes for batch in bench.medium.commits) == 5


def test_a_paused_queue_takes_jobs_and_outcomes_but_delivers_nothing_also_after_a_restart() -> None:
    bench = Bench()
    bench.add()
    delivery = bench.take()
    waiter = bench.park()
    bench.state.pause(bench.now)
    bench.add()
    assert bench.claim() == []
    assert bench.state.ack(ref(delivery), bench.now).ok
    assert waiter.answers == []

    bench.turn()
    bench.restart()
    assert bench.claim() == []
    bench.state.resume(bench.now)

    assert len(bench.claim()) == 1


def test_a_notification_is_due_only_when_no_waiting_claim_took_the_job() -> None:
    bench = Bench()
    bench.add()
    assert bench.effects[-1].notify
    bench.take()
    bench.park()

    bench.add()

    assert not bench.effects[-1].notify


def test_entries_of_jobs_that_left_do_not_pile_up() -> None:
    bench = Bench()
    keeper = bench.add()
    for _ in range(1000):
        bench.state.cancel(bench.add(), bench.now)
    line = bench.state._ledger.ready.lines["*"]

    assert len(line) < 200
    assert bench.take().job_id == keeper


def test_known_workers_do_not_pile_up() -> None:
    bench = Bench()
    for index in range(5000):
        bench.claim(worker=f"w{index}", seq=1)

    assert len(bench.state._leases.holders.by_id) <= 1001


def test_a_claim_waits_on_when_somebody_looked_at_a_queue_whose_only_job_was_cancelled() -> None:
    bench = Bench()
    bench.state.pause(bench.now)
    waiter = bench.park()
    bench.state.cancel(bench.add(), bench.now)
    assert bench.state.stats(bench.now).oldest_ready_s is None

    bench.state.resume(bench.now)
    bench.turn()
    job_id = bench.add()

    ((delivery,),) = waiter.answers
    assert delivery.job_id == job_id
