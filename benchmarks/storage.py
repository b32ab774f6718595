"""What a store costs: `python -m benchmarks.storage [--url sqlite:///path] [--rows 1000000]`.

Per batch size, the life of a job as its owner writes it: put, head changed at the claim, forgotten at the ack; each a
synced commit of its own, then all three in one commit, as under load. Times are of one caller that waits for every
commit; CPU is of the whole process, kernel included.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from istos_worker.storage import QueueMedium, WriteBatch, open_storage

HEAD = (
    b'{"id":"%032x","state":"%s","priority":0,"attempt":%d,"max_attempts":5,"at":1764442800.25,'
    b'"fence":%d,"worker":"w-7"}'
)
BODY = b'{"to":"someone@example.com","subject":"hello","n":123456,"text":"............................"}'


def put(seqs: range) -> WriteBatch:
    return WriteBatch(rows=[(seq, HEAD % (seq, b"ready", 0, 0), BODY) for seq in seqs])


def change(seqs: range) -> WriteBatch:
    return WriteBatch(rows=[(seq, HEAD % (seq, b"leased", 1, seq), None) for seq in seqs])


def forget(seqs: range) -> WriteBatch:
    return WriteBatch(forgotten=list(seqs))


def life(seqs: range) -> WriteBatch:
    """One turn of a busy owner: some jobs arrive, those before them are claimed, those before these are done."""
    size = len(seqs)
    before = range(max(0, seqs.start - size), seqs.start)
    earlier = range(max(0, seqs.start - 2 * size), before.start)
    return WriteBatch(rows=put(seqs).rows + change(before).rows, forgotten=list(earlier))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    label: str
    size: int
    commits_s: float
    rows_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    worst_ms: float

    def __str__(self) -> str:
        return (
            f"{self.label:8} {self.size:6} {self.commits_s:10,.0f} {self.rows_s:10,.0f} {self.cpu_us:8.1f}"
            f" {self.p50_ms:8.2f} {self.p99_ms:8.2f} {self.worst_ms:8.1f}"
        )


TITLE = (
    f"{'what':8} {'batch':>6} {'commits/s':>10} {'rows/s':>10} {'us/row':>8}"
    f" {'p50 ms':>8} {'p99 ms':>8} {'worst':>8}"
)


async def measure(
    queue: QueueMedium, label: str, make: Callable[[range], WriteBatch], total: int, size: int
) -> Figures:
    """The batches are built beforehand: they are the queue's cost, not the store's."""
    batches = [make(seqs) for seqs in slices(total, size)]
    rows = sum(len(batch.rows) + len(batch.forgotten) for batch in batches)
    times = []
    cpu_s, start_s = time.process_time(), time.perf_counter()
    for batch in batches:
        before_s = time.perf_counter()
        await queue.commit(batch)
        times.append(time.perf_counter() - before_s)
    spent_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    times.sort()
    return Figures(
        label=label,
        size=size,
        commits_s=len(batches) / spent_s,
        rows_s=rows / spent_s,
        cpu_us=cpu_s / rows * 1e6,
        p50_ms=times[len(times) // 2] * 1e3,
        p99_ms=times[int(len(times) * 0.99)] * 1e3,
        worst_ms=times[-1] * 1e3,
    )


def slices(total: int, size: int) -> Iterator[range]:
    for start in range(0, total, size):
        yield range(start, min(start + size, total))


async def life_cycles(url: str) -> None:
    print(TITLE)
    for size, total in ((1, 3000), (32, 60_000), (256, 200_000)):
        storage = open_storage(url)
        queue = await storage.open_queue(f"bench/{size}")
        for label, make in (("put", put), ("change", change), ("forget", forget), ("life", life)):
            print(await measure(queue, label, make, total, size), flush=True)
        await storage.aclose()


async def load(url: str, rows: int) -> None:
    storage = open_storage(url)
    queue = await storage.open_queue("bench/load")
    for seqs in slices(rows, 10_000):
        await queue.commit(put(seqs))
    await storage.aclose()
    storage = open_storage(url)
    start_s = time.perf_counter()
    queue = await storage.open_queue("bench/load")
    await queue.notes()
    found = sum([len(chunk) async for chunk in queue.rows()])
    spent_s = time.perf_counter() - start_s
    print(f"load of {found:,} rows: {spent_s:.2f} s, {found / spent_s:,.0f} rows/s")
    await storage.aclose()


@click.command(help=__doc__)
@click.option("--url", default=None, help="A store; by default a SQLite file in the current directory.")
@click.option("--rows", default=1_000_000, show_default=True, help="How many rows to load; 0 for none.")
def main(url: str | None, rows: int) -> None:
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as folder:
        where = url or f"sqlite:///{folder}/queues.db"
        asyncio.run(life_cycles(where))
        if rows:
            asyncio.run(load(where, rows))


if __name__ == "__main__":
    main()
