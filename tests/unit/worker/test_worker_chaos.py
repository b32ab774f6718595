"""The worker on a mesh that loses questions and answers at random, and whose owner comes and goes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from istos_worker.context import JobContext
from istos_worker.wire.keys import notify_key
from tests.unit.worker.house import QUEUE, House


class Chaos:
    """Loses one message in `one_in`: the question, or the answer after the owner has acted."""

    def __init__(self, house: House, seed: int, *, one_in: int) -> None:
        self._house = house
        self._random = random.Random(seed)
        self._one_in = one_in
        self.lost = 0
        self.calm = False
        self.subscribe = house.mesh.subscribe
        self.declare_token = house.mesh.declare_token

    def ask(self, key: str, params: str = "", **rest: Any) -> asyncio.Future[bytes | None]:
        fate = "arrives" if self.calm else self._fate()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | None] = loop.create_future()
        if fate != "arrives":
            self.lost += 1
            # Who lost something may try again at once: this is about what happens, not about when.
            loop.call_later(0.001, self._house.mesh.publish, notify_key(QUEUE), b"1")
        match fate:
            case "question lost, nobody there":
                answer.set_result(None)
            case "question lost, silence":
                answer.set_exception(TimeoutError())
            case "owner restarts":
                state = self._house.mesh.disown(QUEUE)
                assert state is not None
                self._house.mesh.owners[QUEUE] = state
                answer.set_result(None)
            case "answer lost":
                asked = self._house.mesh.ask(key, params, **rest)
                asked.add_done_callback(lambda _: _fail(answer))
            case _:
                return self._house.mesh.ask(key, params, **rest)
        return answer

    def _fate(self) -> str:
        if self._random.randrange(self._one_in):
            return "arrives"
        return self._random.choice(
            [
                "question lost, nobody there",
                "question lost, silence",
                "owner restarts",
                "answer lost",
                "answer lost",
            ]
        )


def _fail(answer: asyncio.Future[bytes | None]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


@pytest.mark.parametrize("seed", range(12))
async def test_every_job_ends_and_every_delivery_runs_once(seed: int) -> None:
    house = House(max_attempts=50)
    mesh = Chaos(house, seed, one_in=3)
    dice = random.Random(seed)
    runs: Counter[tuple[int, int | None]] = Counter()

    async def work(job: int, ctx: JobContext) -> int:
        runs[job, ctx.fence] += 1
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        if not dice.randrange(10):
            raise ValueError("unlucky")
        return job

    async with house.working(work, concurrency=3, prefetch_max=4, session=mesh):
        jobs: list[str] = []
        for _ in range(10):
            jobs += house.enqueue_many(list(range(len(jobs), len(jobs) + 20)))
            await asyncio.sleep(0.002)
        while not all(house.state_of(job) == "done" for job in jobs):
            house.advance(1)  # retries come due
            await asyncio.sleep(0.001)
        mesh.calm = True

    assert mesh.lost > 5
    assert set(runs.values()) == {1}
    assert [house.result_of(job) for job in jobs] == list(range(200))
    assert house.counts()["leased"] == 0


@pytest.mark.parametrize("seed", range(8))
async def test_a_drain_in_the_middle_charges_no_job_that_did_not_fail(seed: int) -> None:
    house = House(max_attempts=50, crash_budget=1000)
    mesh = Chaos(house, seed, one_in=4)
    dice = random.Random(seed)
    finished: Counter[int] = Counter()

    async def work(job: int) -> int:
        for _ in range(dice.randrange(6)):
            await asyncio.sleep(0)
        finished[job] += 1
        return job

    jobs = house.enqueue_many(list(range(100)))
    while not all(house.state_of(job) == "done" for job in jobs):
        async with house.working(work, concurrency=3, prefetch_max=4, session=mesh) as worker:
            for _ in range(dice.randrange(60)):
                await asyncio.sleep(0)
            await worker.drain(dice.choice([0.0, 5.0]))
        house.advance(60)  # the token is gone: what the owner still counts as held is free again

    assert set(finished) == set(range(100))
    charged = {job: house.job(job) for job in jobs if house.job(job).attempts - house.job(job).crashes > 1}
    assert {job: (each.attempts, each.last_error) for job, each in charged.items()} == {}
