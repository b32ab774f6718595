from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from istos_worker.context import JobContext
from istos_worker.testing import LocalMesh
from tests.unit.worker.house import House


class Lossy:
    """A mesh whose replies can be switched off; the owner has acted by then."""

    def __init__(self, mesh: LocalMesh) -> None:
        self._mesh = mesh
        self.loses = False
        self.subscribe = mesh.subscribe
        self.declare_token = mesh.declare_token

    def ask(self, key: str, params: str = "", **rest: Any) -> asyncio.Future[bytes | None]:
        answered = self._mesh.ask(key, params, **rest)
        heard: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def pass_on(reply: asyncio.Future[bytes | None]) -> None:
            if not heard.done():
                heard.set_result(None if self.loses else reply.result())

        answered.add_done_callback(pass_on)
        return heard


async def nothing(job: Any) -> None:
    return None


async def test_an_idle_worker_stops_at_once_and_withdraws_its_claim() -> None:
    house = House()

    async with house.working(nothing) as worker:
        await house.until(lambda: house.verbs().count("claim") == 2)
        begun = time.monotonic()
        await worker.drain()

        assert time.monotonic() - begun < 0.5
        job_id = house.enqueue()  # a claim that was still parked would take it

    assert house.state_of(job_id) == "ready"
    assert house.mesh.tokens_up == set()


async def test_a_job_that_a_claim_brings_during_the_drain_is_handed_back_uncharged() -> None:
    house = House()

    async with house.working(nothing) as worker:
        await house.until(lambda: house.verbs().count("claim") == 2)
        job_id = house.enqueue()
        await worker.drain()  # the reply is under way

    assert house.state_of(job_id) == "ready"
    assert house.job(job_id).attempts == 0
    assert worker.statistics.released == 1


async def test_running_jobs_finish_and_are_told_of_the_drain() -> None:
    house = House()
    started = asyncio.Event()

    async def work(job: Any, ctx: JobContext) -> str:
        started.set()
        while not ctx.draining:  # noqa: ASYNC110 - what a handler does
            await asyncio.sleep(0.001)
        assert ctx.deadline is not None
        return "finished"

    async with house.working(work) as worker:
        job_id = house.enqueue()
        await started.wait()
        waiting = house.enqueue()
        await worker.drain(5.0)

    assert house.result_of(job_id) == "finished"
    assert house.state_of(waiting) == "ready"


@pytest.mark.parametrize("is_async", [True, False])
async def test_past_the_deadline_jobs_are_back_with_the_attempt_count_they_had(is_async: bool) -> None:
    house = House()
    started, release = threading.Event(), threading.Event()

    async def hang(job: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    def block(job: Any) -> None:
        started.set()
        release.wait(10)

    async with house.working(hang if is_async else block, concurrency=2) as worker:
        job_id = house.enqueue()
        await house.until(lambda: house.state_of(job_id) == "leased")
        await asyncio.to_thread(started.wait, 5)
        begun = time.monotonic()
        await worker.drain(0.02)
        took_s = time.monotonic() - begun

    release.set()
    assert house.state_of(job_id) == "ready"
    assert house.job(job_id).attempts == 0
    assert took_s < 1


async def test_a_coroutine_that_swallows_its_cancellation_is_handed_back_all_the_same() -> None:
    house = House()
    started = asyncio.Event()
    end = asyncio.Event()

    async def stubborn(job: Any) -> None:
        started.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with house.working(stubborn) as worker:
        job_id = house.enqueue()
        await started.wait()
        await worker.drain(0.0)

    end.set()
    assert house.state_of(job_id) == "ready"
    assert house.job(job_id).attempts == 0


async def test_a_second_drain_with_a_nearer_deadline_wins() -> None:
    house = House()
    started = asyncio.Event()

    async def hang(job: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    async with house.working(hang) as worker:
        house.enqueue()
        await started.wait()
        patient = asyncio.create_task(worker.drain(None))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await worker.hand_back()
            await patient


async def test_a_quiet_worker_claims_nothing_and_a_resumed_one_does() -> None:
    house = House()

    async with house.working(nothing) as worker:
        first = house.enqueue()
        await house.ended(first)
        await house.until(
            lambda: house.mesh.asked[-1][0].endswith("claim")
        )  # the reply to its outcome was held
        worker.quiet()
        await house.until(lambda: "n=0;seq" in house.mesh.asked[-1][1])
        second = house.enqueue()
        await asyncio.sleep(0.02)
        assert house.state_of(second) == "ready"

        worker.resume()
        await house.ended(second)


async def test_a_claim_that_is_lost_while_a_worker_turns_quiet_is_not_forgotten() -> None:
    house = House()
    lossy = Lossy(house.mesh)

    async with house.working(nothing, session=lossy) as worker:
        await house.until(lambda: any("wait=" in params for _, params in house.mesh.asked))
        lossy.loses = True
        job_id = house.enqueue()  # given to the parked claim, whose reply is lost, as is its withdrawal
        worker.quiet()
        await house.until(lambda: not worker.statistics.connected)
        assert house.state_of(job_id) == "leased"

        lossy.loses = False
        worker.resume()
        await house.ended(job_id)

    assert house.job(job_id).attempts == 1


async def test_what_is_claimed_ahead_is_handed_back_when_the_drain_begins() -> None:
    house = House()
    hold = asyncio.Event()
    started = asyncio.Event()

    async def work(job: str) -> None:
        if job == "hold":
            started.set()
            await hold.wait()

    async with house.working(work) as worker:
        await house.ended(*house.enqueue_many(["short"] * 50))
        jobs = house.enqueue_many(["short", "hold", *["short"] * 10])
        await started.wait()
        draining = asyncio.create_task(worker.drain(5))
        await house.until(lambda: house.counts()["leased"] == 1)
        hold.set()
        await draining

    assert house.counts()["ready"] == 10
    assert {house.job(each).attempts for each in jobs[2:]} == {0}


async def test_an_idle_worker_does_not_wait_for_an_owner_that_is_stuck() -> None:
    house = House()

    class Stuck:
        subscribe = staticmethod(house.mesh.subscribe)
        declare_token = staticmethod(house.mesh.declare_token)
        is_stuck = False

        def ask(self, key: str, params: str = "", **rest: Any) -> asyncio.Future[bytes | None]:
            if self.is_stuck:
                return asyncio.get_running_loop().create_future()
            return house.mesh.ask(key, params, **rest)

    mesh = Stuck()
    async with house.working(nothing, session=mesh) as worker:
        await house.until(lambda: house.verbs().count("claim") == 2)
        mesh.is_stuck = True
        begun = time.monotonic()
        await worker.drain(25)

    assert time.monotonic() - begun < 1


async def test_stop_may_be_called_any_number_of_times_and_before_start() -> None:
    house = House()
    worker = house.worker(nothing)
    await worker.stop()
    await worker.stop()

    other = house.worker(nothing)
    await other.start()
    with pytest.raises(RuntimeError, match="started already"):
        await other.start()
    await other.stop()
    await other.stop()
