"""A job that kills its workers must not take its neighbours along (docs/worker.md, "Suspects")."""

from __future__ import annotations

import asyncio

from istos_worker.queue.records import ClaimRequest
from istos_worker.worker.suspects import RETURN_S, Suspects
from tests.unit.worker.house import House


class Crashed:
    def __init__(self, crashes: int) -> None:
        self.crashes = crashes


def test_what_ran_when_one_worker_died_is_not_kept_apart() -> None:
    suspects = Suspects()
    assert [suspects.admit(Crashed(crashes)) for crashes in (0, 1, 1, 0)] == [True] * 4


def test_one_suspect_is_admitted_at_a_time() -> None:
    suspects, first, second = Suspects(), Crashed(2), Crashed(2)
    assert suspects.admit(first)
    assert not suspects.admit(second)
    assert suspects.admit(Crashed(0))

    suspects.left(second)
    assert not suspects.admit(second)
    suspects.left(first)
    assert suspects.admit(second)


def die_with_three_jobs(house: House, worker: str) -> None:
    house.change(lambda state: state.claim(ClaimRequest(n=3, worker=worker), house.clock()))
    house.change(lambda state: state.bury(worker, "worker lost", None, house.clock()))


async def test_suspects_run_one_after_the_other_and_others_beside_them() -> None:
    house = House()
    suspects = house.enqueue_many(["suspect 1", "suspect 2", "suspect 3"])
    die_with_three_jobs(house, "first")
    die_with_three_jobs(house, "second")
    others = house.enqueue_many(["other 1", "other 2"])
    running: list[str] = []
    together: list[int] = []
    both_others = asyncio.Event()

    async def work(job: str) -> None:
        running.append(job)
        together.append(sum(name.startswith("suspect") for name in running))
        if sum(name.startswith("other") for name in running) == 2:
            both_others.set()
        await both_others.wait()
        running.remove(job)

    async with house.working(work, concurrency=6):
        await house.ended(*others)
        while not all(house.state_of(job_id) == "done" for job_id in suspects):
            house.advance(RETURN_S)
            await asyncio.sleep(0)

    assert max(together) == 1
    assert [house.job(job_id).crashes for job_id in suspects] == [2, 2, 2]


async def test_few_jobs_are_claimed_ahead_among_those_that_saw_a_worker_die() -> None:
    house = House()
    house.enqueue_many(list(range(100)))
    house.change(lambda state: state.claim(ClaimRequest(n=100, worker="first"), house.clock()))
    house.change(lambda state: state.bury("first", "worker lost", None, house.clock()))
    house.enqueue_many(list(range(100, 600)))
    ahead: dict[int, int] = {}

    async def work(number: int) -> None:
        ahead[number] = worker.statistics.prefetched

    async with house.working(work, concurrency=2) as worker:
        await house.until(lambda: house.counts()["done"] == 600)

    assert (
        max(ahead[number] for number in range(90)) <= 2
    )  # not the last ones: the first others may be here by then
    assert max(ahead.values()) > 20
