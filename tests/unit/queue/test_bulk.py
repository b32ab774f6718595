"""Requeue and purge of very many dead letters: in slices, while everything else goes on."""

from __future__ import annotations

from typing import Literal

import pytest

from istos_worker.queue.bulk import LONGEST_S, SLICE, BulkDone
from istos_worker.queue.records import PARKED
from tests.unit.queue.fakes import Bench, FakeWaiter, ref

MANY = 2 * SLICE + 500
Verb = Literal["requeue_all", "purge_all"]


def dead(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.add()
    for delivery in bench.claim(n=count):
        bench.state.nack(ref(delivery), bench.now, error="no", discard=True)
    bench.turn()


def begin(bench: Bench, verb: Verb, waiter: FakeWaiter) -> object:
    return getattr(bench.state, verb)(waiter, bench.now)


@pytest.mark.parametrize(("verb", "ready"), [("requeue_all", MANY), ("purge_all", 0)])
def test_many_are_done_in_slices_and_then_told(verb: Verb, ready: int) -> None:
    bench, waiter = Bench(), FakeWaiter()
    dead(bench, MANY)

    assert begin(bench, verb, waiter) is PARKED
    written = []
    while not waiter.answers:
        due = bench.state.next_due()
        assert due is not None
        assert due <= bench.mono, "nobody would wake the queue"
        writes = bench.turn().writes
        written.append(len(writes.rows) + len(writes.forgotten))

    assert waiter.answers == [BulkDone(MANY, False)]
    assert max(written) <= 2 * SLICE
    assert len(bench.state.dead_jobs()) == 0
    bench.restart()
    assert (len(bench.state.dead_jobs()), bench.state.counts[0]) == (0, ready)


def test_few_are_done_at_once() -> None:
    bench, waiter = Bench(), FakeWaiter()
    dead(bench, 3)

    assert begin(bench, "requeue_all", waiter) == BulkDone(3, False)


def test_an_asker_is_answered_in_time_and_may_ask_again() -> None:
    bench, waiter = Bench(), FakeWaiter()
    dead(bench, MANY)
    begin(bench, "purge_all", waiter)

    bench.sleep(LONGEST_S)

    assert waiter.answers == [BulkDone(2 * SLICE, True)]
    assert begin(bench, "purge_all", waiter) == BulkDone(500, False)


def test_who_dies_meanwhile_is_not_meant() -> None:
    bench, waiter = Bench(), FakeWaiter()
    dead(bench, MANY)
    begin(bench, "purge_all", waiter)
    dead(bench, 1)
    while not waiter.answers:
        bench.turn()

    assert waiter.answers == [BulkDone(MANY, False)]
    assert len(bench.state.dead_jobs()) == 1


def test_one_who_is_gone_is_worked_for_no_more() -> None:
    bench, waiter = Bench(), FakeWaiter()
    dead(bench, MANY)
    begin(bench, "purge_all", waiter)

    bench.state.withdraw(waiter)
    bench.turn()

    assert (waiter.answers, bench.state.surrender()) == ([], [])
    assert len(bench.state.dead_jobs()) == MANY - SLICE
