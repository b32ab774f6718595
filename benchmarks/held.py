"""What holding many jobs costs, end to end through QueueStore over SQLite: `python -m benchmarks.held [jobs]`.

Prints, for 1,000 and for `jobs` (1,000,000) jobs held: the cost of a job's life (enqueue, claim, ack), each in a turn
of its own and in batches of 16; then the time to load the large queue, its memory, and how long the event loop stood
still at worst while the queue grew, was used, and all its dead letters were requeued and purged.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import psutil

from istos_worker.errors import StorageUnavailableError
from istos_worker.queue.bulk import BulkDone
from istos_worker.queue.records import ClaimRequest, Instant, JobRef, NewJob, Parked
from istos_worker.queue.state import QueueState
from istos_worker.queue.store import QueueStore

BODY = b'{"task":"shop.send","args":["a@example.org"],"kwargs":{"retries":3,"text":"' + b"x" * 20 + b'"}}'
BATCH = 1000
SMALL = 1_000


class Stillness:
    """The longest time the loop did not come round."""

    def __init__(self) -> None:
        self._task = asyncio.create_task(self._watch())
        self._worst_s = 0.0

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self._worst_s = max(self._worst_s, time.perf_counter() - before - 0.001)

    def take(self) -> str:
        worst_s, self._worst_s = self._worst_s, 0.0
        return f"worst standstill {worst_s * 1e3:.0f} ms"

    async def aclose(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def enqueue(store: QueueStore, jobs: int) -> None:
    def put(state: QueueState, now: Instant) -> None:
        state.enqueue_many([NewJob(body=bytes(bytearray(BODY))) for _ in range(BATCH)], now)

    for _ in range(jobs // BATCH):
        await store.run(put)


@dataclass(frozen=True, slots=True)
class Cost:
    wall_us: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.wall_us:7.1f} us ({self.cpu_us:6.1f} us of CPU)"


async def lives(store: QueueStore, rounds: int, at_once: int) -> Cost:
    """Per job: enqueued, claimed, acknowledged, `at_once` of them in each turn."""

    def put(state: QueueState, now: Instant) -> None:
        for _ in range(at_once):
            state.enqueue(NewJob(body=BODY), now)

    def take(state: QueueState, now: Instant) -> list[JobRef]:
        found = state.claim(ClaimRequest(n=at_once, worker="w"), now)
        assert not isinstance(found, Parked)
        return [JobRef(one.job_id, one.attempt, one.fence) for one in found]

    before, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        await store.run(put)
        refs = await store.run(take)
        await store.run(lambda state, now, refs=refs: [state.ack(ref, now) for ref in refs])  # type: ignore[misc]
    jobs = rounds * at_once
    return Cost((time.perf_counter() - before) / jobs * 1e6, (time.process_time() - cpu) / jobs * 1e6)


async def best(store: QueueStore, rounds: int, at_once: int) -> Cost:
    costs = [await lives(store, rounds, at_once) for _ in range(4)]
    return min(costs, key=lambda cost: cost.cpu_us)


async def use(store: QueueStore, held: int) -> None:
    for at_once, rounds in ((1, 1500), (16, 600)):
        print(
            f"  {held:>9,} held, {at_once:2} a turn: {await best(store, rounds, at_once)} per job", flush=True
        )


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[QueueStore]:
    store = QueueStore("bench", url)
    try:
        yield store
    finally:
        await store.aclose()


async def grow_and_use(url: str, jobs: int, still: Stillness) -> None:
    async with opened(url) as store:
        await store.load()
        rss = psutil.Process().memory_info().rss
        print("cost of a job's life, by jobs held")
        await enqueue(store, SMALL)
        await use(store, SMALL)
        still.take()
        before = time.perf_counter()
        await enqueue(store, jobs - SMALL)
        print(f"grown to {jobs:,} in {time.perf_counter() - before:.1f} s, {still.take()}")
        grown = (psutil.Process().memory_info().rss - rss) / jobs - len(BODY)
        print(f"{grown:,.0f} bytes per ready job beyond its payload")
        await use(store, jobs)
        print(f"meanwhile: {still.take()}", flush=True)


async def load(url: str, still: Stillness) -> None:
    async with opened(url) as store:
        before, cpu = time.perf_counter(), time.process_time()
        await store.load()
        held = sum(store.state.counts)
        spent = f"{time.perf_counter() - before:.1f} s ({time.process_time() - cpu:.1f} s of CPU)"
        print(f"load of {held:,} jobs: {spent}, {still.take()}", flush=True)
        await bury_all(store, still)
        for name, begin in (("requeue", QueueState.requeue_all), ("purge", QueueState.purge_all)):
            if name == "purge":
                await bury_all(store, still)
            before = time.perf_counter()
            done = await in_parts(store, begin)
            print(f"{name} of {done:,} dead letters: {time.perf_counter() - before:.1f} s, {still.take()}")


async def bury_all(store: QueueStore, still: Stillness) -> None:
    def bury(state: QueueState, now: Instant) -> int:
        found = state.claim(ClaimRequest(n=BATCH, worker="w"), now)
        assert not isinstance(found, Parked)
        for one in found:
            state.nack(JobRef(one.job_id, one.attempt, one.fence), now, error="boom", discard=True)
        return len(found)

    while await store.run(bury):
        pass
    print(f"all nacked to death: {still.take()}", flush=True)


class Asker:
    def __init__(self) -> None:
        self.answer: asyncio.Future[BulkDone] = asyncio.get_running_loop().create_future()

    def deliver(self, answer: BulkDone, /) -> None:
        self.answer.set_result(answer)

    def failed(self, error: StorageUnavailableError, /) -> None:
        self.answer.set_exception(error)


async def in_parts(
    store: QueueStore, begin: Callable[[QueueState, Asker, Instant], BulkDone | Parked]
) -> int:
    letters = 0
    while True:
        asker = Asker()
        answer = await store.run(lambda state, now, asker=asker: begin(state, asker, now))  # type: ignore[misc]
        done = await asker.answer if isinstance(answer, Parked) else answer
        letters += done.letters
        if not done.more:
            return letters


async def measure(jobs: int) -> None:
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as folder:
        url = f"sqlite:///{folder}/queues.db"
        still = Stillness()
        await grow_and_use(url, jobs, still)
        gc.unfreeze()
        gc.collect()
        await asyncio.sleep(0.1)  # what this stood still for is not the queue's doing
        still.take()
        await load(url, still)
        await still.aclose()


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
