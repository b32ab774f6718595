"""Owners that speak only the base protocol, without a network."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from istos_worker.context import JobContext
from istos_worker.queue.records import NewJob, QueueSettings
from istos_worker.wire.keys import BASE_VERBS
from istos_worker.worker import Snooze
from tests.unit.worker.house import QUEUE, House

EXTENSIONS = {"settle", "release", "extend"}


@pytest.fixture
def house() -> House:
    house = House()
    house.mesh.is_base.add(QUEUE)
    return house


async def double(job: int) -> int:
    return job * 2


def workflow(steps: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(steps).encode()).decode()


async def test_jobs_are_drained_with_base_verbs_alone(house: House) -> None:
    async with house.working(double, concurrency=4) as worker:
        jobs = house.enqueue_many(list(range(30)))
        await house.ended(*jobs)
        assert worker.statistics.owner == "peer 0.3"

    assert [house.result_of(job) for job in jobs] == [n * 2 for n in range(30)]
    assert set(house.verbs()) <= BASE_VERBS | {"info"}


async def test_an_idle_worker_is_woken_by_the_owners_nudge(house: House) -> None:
    async with house.working(double, poll_interval_s=3600) as worker:
        await house.until(lambda: worker.statistics.connected)
        job_id = house.enqueue(1)
        await house.ended(job_id)


async def test_workflows_are_advanced_before_the_ack(house: House) -> None:
    house.mesh.own(QueueSettings(prefix="jobs/next"))
    wf = workflow({"chain": [{"prefix": "jobs/next"}, {"prefix": QUEUE}]})

    async with house.working(double):
        job_id = house.enqueue(4, wf=wf)
        await house.ended(job_id)

    verbs = house.verbs()
    assert verbs.index("enqueue") < verbs.index("ack")
    (step,) = house.mesh.enqueued
    assert (step.queue, step.body) == ("jobs/next", b"8")
    following = house.mesh.owners["jobs/next"].job(step.job_id)
    assert following is not None
    assert following.wf == base64.b64encode(b'{"chain":[{"prefix":"jobs/test"}]}').decode()


async def test_a_chord_is_reported_and_called_back_once(house: House) -> None:
    house.mesh.own(QueueSettings(prefix="jobs/done"))
    callback = {"prefix": "jobs/done", "data": base64.b64encode(b'"input"').decode()}

    async with house.working(double, concurrency=3):
        jobs = [
            house.enqueue(n, wf=workflow({"chord": {"id": "c", "index": n, "size": 3, "callback": callback}}))
            for n in range(3)
        ]
        await house.ended(*jobs)

    (called,) = house.mesh.enqueued
    assert json.loads(called.body) == {"results": [0, 2, 4], "input": "input"}


async def test_snooze_and_hand_back_are_nacks_here(house: House) -> None:
    started = asyncio.Event()

    async def work(job: str, ctx: JobContext) -> None:
        if job == "snooze":
            raise Snooze(5)
        started.set()
        await asyncio.Event().wait()

    async with house.working(work, concurrency=2) as worker:
        snoozed, hanging = house.enqueue_many(["snooze", "hang"])
        await started.wait()
        await house.until(lambda: house.job(snoozed).last_error)
        await worker.hand_back()

    assert house.job(snoozed).last_error == "Snooze: snoozed for 5 s"
    assert house.job(hanging).last_error == "the worker stopped before the job was done"
    assert house.job(hanging).attempts == 1


async def test_an_owner_taken_for_a_base_owner_by_mistake_is_recognised_by_its_fences(
    house: House,
) -> None:
    async with house.working(double, poll_interval_s=0.01) as worker:
        await house.until(lambda: worker.statistics.owner == "peer 0.3")
        house.mesh.is_base.clear()
        job_id = house.enqueue(1)
        await house.ended(job_id)
        after = house.enqueue(2)
        await house.ended(after)
        assert worker.statistics.owner == "istos-worker"


async def test_an_owner_that_learns_the_extensions_is_noticed_after_it_was_away(house: House) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def work(job: Any) -> str:
        started.set()
        await finish.wait()
        return "done"

    async with house.working(work, concurrency=2, poll_interval_s=0.01) as worker:
        job_id = house.enqueue()
        await started.wait()
        house.mesh.disown(QUEUE)
        await house.until(lambda: not worker.statistics.connected)
        finish.set()
        house.mesh.is_base.clear()
        house.mesh.owners[QUEUE] = house.state

        await house.ended(job_id)
        after = house.change(lambda state: state.enqueue(NewJob(body=b"1"), house.clock())).job_id
        await house.ended(after)
        assert worker.statistics.owner == "istos-worker"

    assert house.result_of(job_id) == "done"
    assert "settle" in house.verbs()
