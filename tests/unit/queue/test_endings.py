"""Results, dead letters, explanations (CONTRACT.md section 4, rules 5 to 8)."""

from __future__ import annotations

import orjson
import pytest

from istos_worker.errors import PayloadTooLargeError, StorageUnavailableError
from istos_worker.queue.endings import MAX_EXPIRED_AT_ONCE
from istos_worker.queue.limits import MAX_REPLY_BYTES
from istos_worker.queue.records import JobRef, JobResult, Outcome, Parked
from istos_worker.storage.protocol import Row
from tests.unit.queue.fakes import Bench, FakeWaiter, ref


@pytest.mark.parametrize("result", [None, b"", b'{"n":1}', b"\xff\x00"])
def test_a_result_is_kept_for_its_time_also_over_a_restart(result: bytes | None) -> None:
    bench = Bench(keep_results=True, result_ttl_s=100)
    job_id = bench.add()
    bench.state.ack(ref(bench.take()), bench.now, result=result)
    bench.turn()
    bench.restart(down_s=50)
    assert bench.state.result(job_id, bench.now) == JobResult("done", result)

    bench.sleep(51)

    assert bench.state.result(job_id, bench.now) == JobResult("unknown")
    assert bench.medium.rows_by_seq == {}


def test_whoever_waits_for_a_result_gets_it_when_it_comes_kept_or_not() -> None:
    for keep_results in (True, False):
        bench = Bench(keep_results=keep_results)
        job_id = bench.add()
        waiter = FakeWaiter()
        assert isinstance(bench.state.await_result(waiter, job_id, bench.now, wait_s=10), Parked)

        bench.state.ack(ref(bench.take()), bench.now, result=b"42")
        bench.turn()

        assert waiter.answers == [JobResult("done", b"42")]


def test_waiting_ends_with_the_state_there_is() -> None:
    bench = Bench()
    job_id = bench.add()
    waiter = FakeWaiter()
    bench.state.await_result(waiter, job_id, bench.now, wait_s=10)

    bench.sleep(10)

    assert waiter.answers == [JobResult("ready")]


def test_waiting_for_an_unknown_job_ends_at_once() -> None:
    bench = Bench()

    assert bench.state.await_result(FakeWaiter(), "nobody", bench.now, wait_s=10) == JobResult("unknown")


def test_whoever_waits_hears_of_death_and_cancellation_too() -> None:
    bench = Bench(max_attempts=1)
    waiters = [FakeWaiter(), FakeWaiter()]
    dead, cancelled = bench.add(), bench.add()
    for waiter, job_id in zip(waiters, (dead, cancelled), strict=True):
        bench.state.await_result(waiter, job_id, bench.now, wait_s=10)

    bench.state.nack(ref(bench.take()), bench.now, error="x")
    bench.state.cancel(cancelled, bench.now)
    bench.turn()

    assert [waiter.answers for waiter in waiters] == [[JobResult("dead")], [JobResult("cancelled")]]


def test_a_result_beyond_the_limit_is_refused_and_the_job_stays_held() -> None:
    bench = Bench(max_payload_bytes=100)
    bench.add()
    delivery = bench.take()

    with pytest.raises(PayloadTooLargeError, match="result"):
        bench.state.ack(ref(delivery), bench.now, result=b"x" * 101)

    assert bench.counts() == {"leased": 1}


def test_dead_letters_outlive_results_and_restarts() -> None:
    bench = Bench(max_attempts=1, result_ttl_s=10)
    job_id = bench.add(b"body")
    bench.state.nack(ref(bench.take()), bench.now, error="boom")
    bench.sleep(86400)
    bench.restart()

    (letter,) = bench.state.dead_letters().jobs
    assert (letter.job_id, letter.attempts, letter.last_error, letter.body) == (job_id, 1, "boom", b"body")


def test_dead_letters_come_in_pages_that_stay_valid_while_letters_come_and_go() -> None:
    bench = Bench(max_attempts=1)
    ids = [bench.add() for _ in range(5)]
    for delivery in bench.claim(5):
        bench.state.nack(ref(delivery), bench.now, error="x")
    first = bench.state.dead_letters(limit=2)
    assert [one.job_id for one in first.jobs] == ids[:2]

    bench.state.purge(ids[1], bench.now)
    bench.state.requeue(ids[2], bench.now)
    second = bench.state.dead_letters(limit=2, after=first.next)

    assert [one.job_id for one in second.jobs] == ids[3:]
    assert second.next is None


def test_a_cursor_that_is_none_begins_at_the_beginning() -> None:
    bench = Bench(max_attempts=1)
    bench.add()
    bench.state.nack(ref(bench.take()), bench.now, error="x")

    assert len(bench.state.dead_letters(after="nonsense").jobs) == 1


def test_a_requeued_dead_letter_has_all_its_attempts_and_its_history() -> None:
    bench = Bench(max_attempts=2)
    job_id = bench.add()
    for error in ("one", "two"):
        bench.state.nack(ref(bench.take()), bench.now, error=error)
        bench.turn()
    assert bench.state.requeue(job_id, bench.now) == 1
    bench.turn()
    bench.restart()

    delivery = bench.take()

    assert (delivery.attempt, delivery.last_error) == (1, "two")
    assert bench.state.nack(ref(delivery), bench.now, error="three").disposition == "requeued"
    bench.turn()
    bench.state.nack(ref(bench.take()), bench.now, error="four")
    assert bench.state.dead_letters().jobs[0].history == ("one", "two", "three", "four")


def test_the_history_of_errors_is_bounded() -> None:
    bench = Bench(max_attempts=100)
    bench.add()
    for number in range(20):
        bench.state.nack(ref(bench.take()), bench.now, error=f"{number} " + "x" * 5000)
        bench.turn()

    history = bench.state._ledger.by_seq[1].history
    assert history is not None
    assert len(history) == 10
    assert all(len(entry) <= 1000 for entry in history)


def test_a_long_error_is_cut_and_marked() -> None:
    bench = Bench(max_attempts=1)
    bench.add()
    bench.state.nack(ref(bench.take()), bench.now, error="é" * 100_000)

    error = bench.state.dead_letters().jobs[0].last_error
    assert error is not None
    assert error.endswith("[truncated]")
    assert len(error.encode()) <= 64 * 1024


def test_an_error_with_half_a_character_is_written_all_the_same() -> None:
    bench = Bench(max_attempts=1)
    bench.add()
    bench.state.nack(ref(bench.take()), bench.now, error="bad \ud800 text")
    bench.turn()
    bench.restart()

    assert bench.state.dead_letters().jobs[0].last_error == "bad ? text"


def test_a_dead_job_is_not_acked_any_more() -> None:
    bench = Bench(max_attempts=1)
    job_id = bench.add()
    delivery = bench.take()
    bench.state.nack(ref(delivery), bench.now, error="x")

    assert bench.state.ack(ref(delivery), bench.now) == Outcome(False, True)
    assert bench.state.ack(JobRef(job_id), bench.now) == Outcome(False)


def test_a_cancelled_job_is_never_delivered_and_says_so() -> None:
    bench = Bench()
    job_id = bench.add()

    assert bench.state.cancel(job_id, bench.now) == (True, "cancelled")
    assert bench.state.cancel(job_id, bench.now) == (True, "cancelled")
    assert bench.state.cancel("nobody", bench.now) == (False, "unknown")
    bench.turn()
    bench.restart()

    assert bench.claim() == []
    assert bench.job_state(job_id) == "cancelled"


def test_stats_tell_counts_age_and_workers() -> None:
    bench = Bench()
    bench.add()
    bench.add(delay_s=99)
    bench.state.worker_up("w", bench.now)
    bench.sleep(5)
    bench.add()

    stats = bench.state.stats(bench.now)

    assert (stats.counts["ready"], stats.counts["delayed"], stats.workers, stats.paused) == (2, 1, 1, False)
    assert stats.oldest_ready_s == 5
    assert stats.totals["enqueued"] == 3


def test_the_age_of_the_oldest_ready_job_does_not_count_one_that_left() -> None:
    bench = Bench()
    oldest = bench.add()
    bench.sleep(5)
    bench.add()
    bench.state.cancel(oldest, bench.now)

    assert bench.state.stats(bench.now).oldest_ready_s == 0
    bench.take()
    assert bench.state.stats(bench.now).oldest_ready_s is None


def test_why_names_what_a_job_waits_for() -> None:
    bench = Bench()
    mail = b'{"task":"mail","args":[],"kwargs":{}}'
    delayed, ready = bench.add(delay_s=9), bench.add(mail)

    def why(job_id: str) -> str:
        return bench.state.why(job_id, bench.now).why

    assert why(delayed) == "waits 9.0 s more before it may start"
    assert why(ready) == "is ready, but no worker of this queue is known"
    bench.park(worker="w", seq=1, tasks=frozenset({"scan"}))
    assert why(ready) == "is ready, but no worker here has the task 'mail'"
    bench.state.pause(bench.now)
    assert why(ready) == "is ready, but the queue is paused"
    bench.state.resume(bench.now)
    bench.claim(worker="v", seq=1)
    bench.sleep(2)
    assert why(ready) == "runs on attempt 1, held by worker v, claimed or renewed 2.0 s ago"
    assert "not known here" in why("nobody")


def test_why_names_the_holder_of_a_dead_letter_s_key() -> None:
    bench = Bench()
    dead = bench.add(unique_key="k")
    bench.state.nack(ref(bench.take()), bench.now, error="boom", discard=True)
    newer = bench.add(unique_key="k")

    why = bench.state.why(dead, bench.now).why

    assert why == f"is a dead letter after 1 of 5 attempts: boom; its unique key is held by job {newer}"


def test_a_page_of_large_dead_letters_ends_early_and_a_claim_of_large_jobs_too() -> None:
    bench = Bench()
    large = b"1" * (MAX_REPLY_BYTES // 2)
    ids = [bench.add(large) for _ in range(5)]
    first = bench.claim(n=5)
    assert [one.job_id for one in first] == ids[:2]
    for delivery in [*first, *bench.claim(n=5), *bench.claim(n=5)]:
        bench.state.nack(ref(delivery), bench.now, error="boom", discard=True)

    page = bench.state.dead_letters()
    rest = bench.state.dead_letters(after=page.next)

    assert [one.job_id for one in page.jobs] == ids[:2]
    assert [one.job_id for one in rest.jobs] == ids[2:4]


def test_very_many_that_expire_together_die_in_slices() -> None:
    bench = Bench()
    for _ in range(MAX_EXPIRED_AT_ONCE + 1):
        bench.add(expires_s=1)

    bench.sleep(2)

    assert len(bench.state.dead_jobs()) == MAX_EXPIRED_AT_ONCE
    due = bench.state.next_due()
    assert due is not None
    assert due <= bench.mono
    bench.turn()
    assert len(bench.state.dead_jobs()) == MAX_EXPIRED_AT_ONCE + 1


def test_a_head_of_a_later_format_is_refused_by_name() -> None:
    bench = Bench()

    with pytest.raises(StorageUnavailableError, match="newer version"):
        bench.state.load_rows([Row(7, orjson.dumps([2, 0, "id"]), b"")], bench.now)


@pytest.mark.parametrize("head", [b"", b"{}", b"[]", b"[1]", b'[1,"z"]', b"[1,0]", b"7", b'[1,"t",1]'])
def test_a_damaged_head_is_refused_by_number(head: bytes) -> None:
    bench = Bench()

    with pytest.raises(StorageUnavailableError, match="record 7"):
        bench.state.load_rows([Row(7, head, b"")], bench.now)
