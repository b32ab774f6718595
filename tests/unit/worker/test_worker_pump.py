from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from istos_worker.errors import UnauthorizedError
from istos_worker.wire.codec import decode_params, encode_error
from istos_worker.worker import WorkerHooks, pump
from tests.unit.worker.house import QUEUE, House


class Unreliable:
    """A mesh that loses replies, or answers in the owner's place."""

    def __init__(self, house: House) -> None:
        self._mesh = house.mesh
        self.lose: list[str] = []
        """Verbs whose next reply is lost, after the owner has acted."""
        self.answer: dict[str, bytes] = {}
        self.subscribe = house.mesh.subscribe
        self.declare_token = house.mesh.declare_token

    def ask(self, key: str, params: str = "", **rest: Any) -> asyncio.Future[bytes | None]:
        verb = key.rpartition("/")[2]
        if verb in self.answer:
            future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            future.set_result(self.answer[verb])
            self._mesh.asked.append((verb, params))
            return future
        answered = self._mesh.ask(key, params, **rest)
        if verb not in self.lose or (verb == "claim" and "seq" not in params):
            return answered
        self.lose.remove(verb)
        lost: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda _: lost.set_exception(TimeoutError()))
        return lost


async def nothing(job: Any) -> None:
    return None


async def test_outcomes_travel_together_and_bring_the_next_jobs() -> None:
    house = House()
    jobs = house.enqueue_many(list(range(100)))

    async with house.working(nothing, concurrency=10):
        await house.ended(*jobs)
        trips = len([verb for verb in house.verbs() if verb in ("settle", "claim")])

    assert trips <= 20


async def test_outcomes_wait_for_those_of_short_jobs_that_run_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every job here is short beside that, however busy the machine.
    monkeypatch.setattr(pump, "_NEARLY_S", 10.0)
    house = House()

    async with house.working(nothing, concurrency=4):
        for _ in range(2):  # the first is claimed before anything is known of how long they take
            await house.ended(house.enqueue())
        before = house.verbs().count("settle")
        await house.ended(*house.enqueue_many(list(range(12))))

        assert house.verbs().count("settle") == before + 1


async def test_an_outcome_does_not_wait_for_a_job_that_takes_longer() -> None:
    house = House()
    go_on = asyncio.Event()

    async def work(job: Any) -> None:
        if job == "long":
            await go_on.wait()

    async with house.working(work, concurrency=2):
        _, short = house.enqueue_many(["long", "short"])
        await house.ended(short)
        go_on.set()


async def test_an_idle_worker_parks_one_claim_and_asks_no_more() -> None:
    house = House()

    async with house.working(nothing, concurrency=4) as worker:
        await house.until(lambda: worker.statistics.connected)
        await asyncio.sleep(0)
        asked = list(house.mesh.asked)
        await asyncio.sleep(0.02)

        assert house.mesh.asked == asked
        verb, params = asked[-1]
        assert verb == "claim"
        assert decode_params(params) == {"n": "4", "wait": "20", "seq": "1", "worker": worker.worker_id}


async def test_an_outcome_does_not_wait_for_a_parked_claim() -> None:
    house = House()
    finish = asyncio.Event()

    async def wait(job: Any) -> None:
        await finish.wait()

    async with house.working(wait, concurrency=2):
        job_id = house.enqueue()
        await house.until(lambda: house.state_of(job_id) == "leased")
        await house.until(lambda: house.verbs().count("claim") == 3)  # the second slot's claim is parked

        finish.set()
        await house.ended(job_id)

        verb, params = house.mesh.asked[-1]
        assert verb == "settle"
        assert "n" not in decode_params(params)


@pytest.mark.parametrize("verb", ["claim", "settle"])
async def test_a_lost_reply_loses_no_job_and_repeats_none(verb: str) -> None:
    house = House()
    unreliable = Unreliable(house)
    unreliable.lose.append(verb)
    ran: list[int] = []

    async def work(job: int) -> None:
        ran.append(job)

    async with house.working(work, session=unreliable, concurrency=2):
        jobs = house.enqueue_many(list(range(20)))
        await house.ended(*jobs)

    assert unreliable.lose == []
    assert sorted(ran) == list(range(20))


async def test_an_owner_that_goes_and_comes_back_costs_one_log_line_each_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "istos_worker.worker.outage")
    house = House()
    started, finish = asyncio.Event(), asyncio.Event()

    async def work(job: Any) -> None:
        started.set()
        await finish.wait()

    async with house.working(work, concurrency=2) as worker:
        job_id = house.enqueue()
        await started.wait()
        assert worker.statistics.connected

        house.mesh.disown(QUEUE)
        await house.until(lambda: not worker.statistics.connected)
        finish.set()
        await asyncio.sleep(0.05)
        house.mesh.owners[QUEUE] = house.state

        await house.ended(job_id)
        await house.until(lambda: worker.statistics.connected)

    begun, over = [record.getMessage() for record in caplog.records]
    assert begun == f"queue {QUEUE}: not consuming: no owner of {QUEUE!r} is there"
    assert over.startswith(f"queue {QUEUE}: consuming again after ")


async def test_a_worker_without_an_owner_is_not_connected_and_stops_at_once() -> None:
    house = House()
    house.mesh.disown(QUEUE)

    async with house.working(nothing) as worker:
        await asyncio.sleep(0.01)
        assert not worker.statistics.connected
        async with asyncio.timeout(0.5):
            await worker.drain()


@pytest.mark.parametrize(
    "outcomes", [b"5", b"[5]", b'[{"ok": true}, {"ok": true}]'], ids=["no list", "no object", "too many"]
)
async def test_outcomes_that_are_answered_with_nonsense_are_told_again(
    outcomes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
    mesh = Unreliable(house)
    mesh.answer["settle"] = b'{"outcomes": %s}' % outcomes
    job = house.enqueue()

    async with house.working(nothing, session=mesh):
        await house.until(lambda: "something else" in caplog.text)
        del mesh.answer["settle"]
        await house.ended(job)

    assert "Traceback" not in caplog.text


async def test_an_owner_that_sends_no_list_of_jobs_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    mesh = Unreliable(house)
    mesh.answer["claim"] = b'{"jobs": {"a": 1}}'

    async with house.working(nothing, session=mesh):
        await house.until(lambda: "something else" in caplog.text)
        del mesh.answer["claim"]
        await house.ended(house.enqueue())

    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "jobs", [b"[5]", b'["x", null, {}]', b'[{"job_id": 5}]', b'[{"job_id": "a", "crashes": "many"}]']
)
async def test_what_is_no_job_is_named_and_left(jobs: bytes, caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    mesh = Unreliable(house)
    mesh.answer["claim"] = b'{"jobs": %s}' % jobs

    async with house.working(nothing, session=mesh):
        await house.until(lambda: "something that is no job" in caplog.text)
        del mesh.answer["claim"]
        await house.ended(house.enqueue())

    assert "Traceback" not in caplog.text


async def test_a_refused_token_is_named_in_the_log_and_not_hammered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    unreliable = Unreliable(house)
    unreliable.answer["claim"] = encode_error(UnauthorizedError("this token may not claim"))

    async with house.working(nothing, session=unreliable) as worker:
        await house.until(lambda: caplog.records)
        await asyncio.sleep(0.1)
        assert not worker.statistics.connected
        assert len(house.mesh.asked) <= 3

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "unauthorized: this token may not claim" in record.getMessage()


async def test_no_short_job_waits_for_a_long_one() -> None:
    house = House()
    never = asyncio.Event()

    async def work(job: str) -> None:
        await (never.wait() if job == "long" else asyncio.sleep(0.001))

    async with house.working(work, concurrency=2) as worker:
        warm_up = house.enqueue_many(["short"] * 50)
        await house.ended(*warm_up)
        long, *short = house.enqueue_many(["long", *["short"] * 300])
        begun = time.monotonic()
        await house.ended(*short)

        assert time.monotonic() - begun < 5
        assert worker.running() == [long]
        never.set()


async def test_jobs_claimed_ahead_that_do_not_start_in_time_are_handed_back_uncharged() -> None:
    house = House()
    never = asyncio.Event()

    async def work(job: str) -> None:
        if job == "long":
            await never.wait()

    async with house.working(work) as worker:
        warm_up = house.enqueue_many(["short"] * 50)
        await house.ended(*warm_up)
        _, *behind = house.enqueue_many(["short", "long", *["short"] * 30])[1:]
        await house.until(lambda: worker.statistics.released > 0)
        await house.until(lambda: house.counts()["ready"] == 30)

        assert {house.job(each).attempts for each in behind} == {0}
        assert worker.statistics.prefetched == 0
        never.set()
        await house.ended(*behind)


async def test_an_outcome_for_a_job_that_has_gone_to_another_holder_is_counted_stale() -> None:
    house = House()
    started, finish = asyncio.Event(), asyncio.Event()

    async def work(job: Any) -> None:
        started.set()
        await finish.wait()

    async with house.working(work) as worker:
        job_id = house.enqueue()
        await started.wait()
        worker_id = worker.worker_id
        house.mesh._subscribers.clear()  # the order that would tell it is lost
        house.change(lambda state: state.worker_down(worker_id, house.clock()))
        house.advance(60)
        finish.set()
        await house.until(lambda: house.verbs()[-1] == "settle")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert worker.statistics.stale == 1
        await house.ended(job_id)
    assert house.job(job_id).attempts == 2


async def test_a_job_taken_away_by_the_owner_ends_here_without_a_word() -> None:
    house = House()
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang(job: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with house.working(hang) as worker:
        house.enqueue()
        await started.wait()
        worker_id = worker.worker_id
        house.change(lambda state: state.worker_down(worker_id, house.clock()))
        house.advance(60)
        async with asyncio.timeout(5):
            await ended.wait()
        await asyncio.sleep(0)

        assert worker.statistics.stale == 0
        assert worker.running() == []


async def test_a_result_too_large_for_the_owner_ends_the_job_without_repeating_it() -> None:
    house = House(max_payload_bytes=1000)
    runs: list[str] = []

    async def work(job: str) -> str:
        runs.append(job)
        return "x" * 5000 if job == "large" else job

    async with house.working(work, concurrency=4):
        large, *others = house.enqueue_many(["large", "b", "c"])
        await house.ended(large, *others)

    assert [house.result_of(each) for each in others] == ["b", "c"]
    if house.state_of(large) != "done":  # the owner may also take it and keep no result
        assert "the owner does not take the result" in house.job(large).last_error
    assert sorted(runs) == ["b", "c", "large"]


async def test_on_change_tells_when_the_connection_is_there() -> None:
    house = House()
    told: list[bool] = []
    changed = asyncio.Event()

    def on_change() -> None:
        told.append(worker.statistics.connected)
        changed.set()

    worker = house.worker(nothing, hooks=WorkerHooks(on_change=on_change))
    async with worker, asyncio.timeout(5):
        await changed.wait()

    assert told[0] is True
