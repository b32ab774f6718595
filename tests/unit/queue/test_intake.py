"""Coming in: ids, keys, ticks, delays, expiry, the door (CONTRACT.md section 4, rules 10 to 12)."""

from __future__ import annotations

from typing import Any

import pytest

from istos_worker.errors import BadRequestError, ConflictError, IstosError, PayloadTooLargeError
from istos_worker.queue.alike import BatchEnqueued, NewBatch
from istos_worker.queue.records import NewJob
from tests.unit.queue.fakes import Bench, ref


def test_the_same_id_again_enqueues_nothing() -> None:
    bench = Bench()
    bench.add(job_id="order-1")

    assert bench.state.enqueue(NewJob(body=b"2", job_id="order-1"), bench.now) == ("order-1", True)
    assert bench.counts() == {"ready": 1}


@pytest.mark.parametrize("keep_results", [True, False])
def test_the_same_id_is_known_after_the_job_is_done_and_the_owner_restarted(keep_results: bool) -> None:
    bench = Bench(keep_results=keep_results, result_ttl_s=3600)
    bench.add(job_id="order-1")
    bench.state.ack(ref(bench.take()), bench.now)
    bench.turn()
    bench.restart(down_s=3000)
    assert bench.state.enqueue(NewJob(body=b"1", job_id="order-1"), bench.now).duplicate

    bench.sleep(700)

    assert not bench.state.enqueue(NewJob(body=b"1", job_id="order-1"), bench.now).duplicate


def test_remembered_ids_leave_memory_and_medium_again() -> None:
    bench = Bench()
    for _ in range(50):
        bench.add()
        bench.state.ack(ref(bench.take()), bench.now)
        bench.turn()
    assert len(bench.medium.rows_by_seq) == 50

    bench.sleep(601)

    assert bench.medium.rows_by_seq == {}
    assert len(bench.state._ledger.tombs) == 0


def test_ids_finished_in_one_turn_are_one_row() -> None:
    bench = Bench()
    for _ in range(50):
        bench.add()
    for delivery in bench.claim(50):
        bench.state.ack(ref(delivery), bench.now)
    bench.turn()

    assert len(bench.medium.rows_by_seq) == 1


def test_a_job_that_comes_and_goes_in_one_turn_never_reaches_the_medium() -> None:
    bench = Bench()
    bench.state.enqueue(NewJob(body=b"1", job_id="x"), bench.now)
    bench.state.ack(ref(bench.take()), bench.now)
    writes = bench.turn().writes

    assert all(body == b"" for _, _, body in writes.rows)


def test_a_unique_key_lets_one_live_job_in() -> None:
    bench = Bench()
    first = bench.add(unique_key="user-7")
    assert bench.state.enqueue(NewJob(body=b"2", unique_key="user-7"), bench.now) == (first, True)
    bench.restart()
    assert bench.state.enqueue(NewJob(body=b"2", unique_key="user-7"), bench.now) == (first, True)

    bench.state.ack(ref(bench.take()), bench.now)

    assert not bench.state.enqueue(NewJob(body=b"2", unique_key="user-7"), bench.now).duplicate


def test_a_dead_letter_whose_key_has_a_new_holder_is_not_requeued_beside_it() -> None:
    bench = Bench(max_attempts=1)
    dead = bench.add(unique_key="k")
    bench.state.nack(ref(bench.take()), bench.now, error="x")
    bench.add(unique_key="k")

    with pytest.raises(ConflictError, match="unique key"):
        bench.state.requeue(dead, bench.now)
    assert bench.state.requeue(None, bench.now) == 0


def test_a_delayed_job_is_ready_at_its_time_also_over_a_restart() -> None:
    bench = Bench()
    bench.add(delay_s=60)
    bench.restart(down_s=30)
    assert bench.state.next_due() == bench.mono + 30
    bench.sleep(29.9)
    assert bench.claim() == []

    bench.sleep(0.1)

    assert len(bench.claim()) == 1


def test_a_step_of_the_wall_clock_moves_no_delay() -> None:
    bench = Bench()
    bench.add(delay_s=60)
    bench.wall += 7200
    bench.turn()
    assert bench.counts() == {"delayed": 1}

    bench.wall -= 20_000
    bench.sleep(60)

    assert bench.counts() == {"ready": 1}


def test_a_job_not_started_in_time_is_dead_with_the_reason() -> None:
    bench = Bench()
    bench.add(expires_s=10)
    bench.restart(down_s=4)
    bench.sleep(6.1)

    assert bench.state.dead_letters().jobs[0].last_error == "expired"


def test_a_job_started_in_time_does_not_expire() -> None:
    bench = Bench()
    bench.add(expires_s=10)
    delivery = bench.take()
    bench.sleep(11)

    bench.state.nack(ref(delivery), bench.now, error="x")
    bench.sleep(100)

    assert bench.counts() == {"ready": 1}


def test_a_tick_fires_once_whoever_asks_and_whenever() -> None:
    bench = Bench()

    def fire(tick: str) -> bool:
        new = NewJob(body=b"1", schedule="nightly", tick=tick)
        return not bench.state.enqueue(new, bench.now).duplicate

    assert fire("2026-01-01T00:00:00.000Z")
    assert not fire("2026-01-01T00:00:00.000Z")
    bench.turn()
    bench.restart()
    assert not fire("2026-01-01T00:00:00.000Z")
    assert fire("2026-01-02T00:00:00.000Z")
    assert not fire("2026-01-01T12:00:00.000Z")
    assert bench.state.last_tick("nightly") == "2026-01-02T00:00:00.000Z"


def test_a_tick_s_id_is_the_same_wherever_it_is_made() -> None:
    ids = {
        Bench()
        .state.enqueue(NewJob(body=b"1", schedule="s", tick="2026-01-01T00:00:00.000Z"), Bench().now)
        .job_id
        for _ in range(2)
    }

    assert len(ids) == 1


def test_a_batch_fires_a_tick_as_a_whole() -> None:
    bench = Bench()

    def batch() -> list[bool]:
        jobs = [NewJob(body=b"1", schedule="s", tick="1") for _ in range(3)]
        return [one.duplicate for one in bench.state.enqueue_many(jobs, bench.now)]

    assert batch() == [False, False, False]
    assert batch() == [True, True, True]


def test_a_batch_with_one_bad_member_enqueues_nothing() -> None:
    bench = Bench()

    with pytest.raises(BadRequestError, match="job_id"):
        bench.state.enqueue_many([NewJob(body=b"1"), NewJob(body=b"1", job_id="no blanks")], bench.now)

    assert bench.counts() == {}


def alike(*bodies: bytes, base_id: str | None = None, **fields: Any) -> NewBatch:
    return NewBatch(like=NewJob(body=b"", **fields), bodies=bodies, base_id=base_id)


@pytest.mark.parametrize(
    "fields", [{}, {"priority": 3}, {"unique_key": "k"}, {"delay_s": 1.0}, {"tick": "1"}]
)
def test_jobs_that_are_alike_come_in_as_they_would_one_by_one(fields: dict[str, Any]) -> None:
    fields = {**fields, "schedule": "s"} if "tick" in fields else fields
    bodies = [b'{"task":"a","args":[],"kwargs":{}}', b"1", b'{"task":"b","args":[],"kwargs":{}}', b"2"]
    together, apart = Bench(), Bench()

    done = together.state.enqueue_alike(alike(*bodies, base_id="b", **fields), together.now)
    one_by_one = apart.state.enqueue_many(
        [NewJob(body=body, job_id=f"b.{index}", **fields) for index, body in enumerate(bodies)], apart.now
    )

    assert done.job_ids == [one.job_id for one in one_by_one]
    assert done.duplicates == sum(one.duplicate for one in one_by_one)
    assert together.counts() == apart.counts()
    for bench in (together, apart):
        bench.sleep(2)
        bench.restart()
    for tasks in (frozenset({"b"}), None):
        told = [
            [(one.job_id, one.body) for one in bench.claim(9, tasks=tasks)] for bench in (together, apart)
        ]
        assert told[0] == told[1]


def test_of_jobs_that_are_alike_those_held_already_are_duplicates() -> None:
    bench = Bench()
    bench.add(job_id="b.1", body=b"held")

    done = bench.state.enqueue_alike(alike(b"0", b"1", b"2", base_id="b"), bench.now)

    assert done == BatchEnqueued(["b.0", "b.1", "b.2"], duplicates=1)
    assert bench.counts() == {"ready": 3}


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (alike(b"1", b"x" * (8 * 1024 * 1024 + 1), b"2"), PayloadTooLargeError),
        (alike(b"1", b"2", base_id="no blanks"), BadRequestError),
        (alike(*[b"1"] * 11, base_id="x" * 62), BadRequestError),
        (alike(*[b"1"] * 1001), BadRequestError),
        (alike(b"1", priority=2**31 + 1), BadRequestError),
        (alike(b"1", max_attempts=0), BadRequestError),
    ],
)
def test_of_jobs_that_are_alike_all_are_refused_or_none(batch: NewBatch, error: type[IstosError]) -> None:
    bench = Bench()

    with pytest.raises(error):
        bench.state.enqueue_alike(batch, bench.now)

    assert bench.counts() == {}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"body": b"x" * (8 * 1024 * 1024 + 1)}, PayloadTooLargeError),
        ({"priority": 2**31 + 1}, BadRequestError),
        ({"priority": -(2**31) - 1}, BadRequestError),
        ({"job_id": ""}, BadRequestError),
        ({"job_id": "x" * 65}, BadRequestError),
        ({"job_id": "a/b"}, BadRequestError),
        ({"delay_s": -1.0}, BadRequestError),
        ({"delay_s": float("nan")}, BadRequestError),
        ({"delay_s": float("inf")}, BadRequestError),
        ({"expires_s": -0.1}, BadRequestError),
        ({"max_attempts": 0}, BadRequestError),
        ({"unique_key": ""}, BadRequestError),
        ({"unique_key": "k" * 257}, BadRequestError),
        ({"unique_key": "\ud800"}, BadRequestError),
        ({"schedule": "s"}, BadRequestError),
        ({"wf": "\xe9"}, BadRequestError),
    ],
)
def test_what_exceeds_a_limit_is_refused_at_the_door(
    fields: dict[str, object], error: type[IstosError]
) -> None:
    bench = Bench()

    with pytest.raises(error):
        bench.add(**{"body": b"1", **fields})  # type: ignore[arg-type]

    assert bench.counts() == {}


def test_a_batch_has_its_limit() -> None:
    bench = Bench()

    with pytest.raises(BadRequestError, match="at most 1000"):
        bench.state.enqueue_many([NewJob(body=b"1")] * 1001, bench.now)


def test_the_largest_allowed_values_come_in() -> None:
    bench = Bench()
    bench.add(b"x" * (8 * 1024 * 1024), priority=2**31, job_id="x" * 64)
    bench.add(priority=-(2**31))
    bench.restart()

    assert [one.job.priority for one in bench.claim(2)] == [2**31, -(2**31)]
