"""What the owner's state machine costs, without network and medium: `python -m benchmarks.core [backlog]`.

Prints operations a second of enqueue + claim + ack at a small and a large backlog, heads encoded; bytes per ready
job beyond its payload; the time to load the large backlog. All in CPU
time: other work on the machine must not count.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from itertools import count

import psutil

from istos_worker.queue.records import ClaimRequest, Instant, JobRef, NewJob, Parked, QueueSettings
from istos_worker.queue.state import QueueState
from istos_worker.storage.protocol import Row

BODY = b'{"task":"shop.send","args":["a@example.org"],"kwargs":{"retries":3,"text":"' + b"x" * 20 + b'"}}'
TASKS = frozenset({"shop.send"})
TURN = 16
_claims = count(1)


def fresh_state() -> QueueState:
    state = QueueState(QueueSettings(prefix="bench"))
    state.load_notes({}, now())
    state.loaded(now())
    state.worker_up("w", now())
    return state


def now() -> Instant:
    return Instant(time.time(), time.monotonic())


def fill(state: QueueState, jobs: int) -> None:
    at = now()
    for index in range(jobs):
        state.enqueue(NewJob(body=BODY + b" " * (index % 2)), at)
        if index % 1000 == 0:
            state.take_effects()
    state.take_effects()


def rounds(state: QueueState, jobs: int) -> float:
    """CPU seconds for `jobs` times enqueue, claim and ack, in turns of 16, claims of 8."""
    started = time.process_time()
    for _ in range(jobs // TURN):
        at = now()
        for _ in range(TURN):
            state.enqueue(NewJob(body=BODY), at)
        state.tick(at)
        state.take_effects()
        for _ in range(2):
            request = ClaimRequest(n=TURN // 2, worker="w", seq=next(_claims), tasks=TASKS)
            deliveries = state.claim(request, at)
            assert not isinstance(deliveries, Parked)
            assert len(deliveries) == TURN // 2
            state.tick(at)
            state.take_effects()
            for delivery in deliveries:
                state.ack(JobRef(delivery.job.id, delivery.attempt, delivery.fence), at, result=b"null")
        state.tick(at)
        state.take_effects()
        state.next_due()
    return time.process_time() - started


def stored_rows(jobs: int) -> Iterator[list[Row]]:
    state = fresh_state()
    at = now()
    for start in range(0, jobs, 1000):
        for _ in range(min(1000, jobs - start)):
            state.enqueue(NewJob(body=BODY), at)
        yield [
            Row(seq, head, bytes(bytearray(body or b"")))
            for seq, head, body in state.take_effects().writes.rows
        ]


def load(jobs: int) -> float:
    chunks = list(stored_rows(jobs))
    gc.collect()
    state = QueueState(QueueSettings())
    gc.disable()
    started = time.process_time()
    for chunk in chunks:
        state.load_rows(chunk, now())
    state.loaded(now())
    taken = time.process_time() - started
    gc.enable()
    return taken


def memory_per_job(jobs: int) -> float:
    process = psutil.Process()
    state = fresh_state()
    gc.collect()
    before = process.memory_info().rss
    fill(state, jobs)
    return (process.memory_info().rss - before) / jobs - len(BODY)


def main() -> None:
    large = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"bytes per ready job beyond its payload: {memory_per_job(large // 5):,.0f}")
    for backlog in (1_000, large):
        state = fresh_state()
        fill(state, backlog)
        gc.collect()
        rounds(state, 3_000)
        seconds = min(rounds(state, 20_000) for _ in range(3)) / 20_000
        print(f"backlog {backlog:>9,}: {seconds * 1e6:6.1f} us per job, {1 / seconds:,.0f} jobs/s")
        del state
    print(f"load of {large:,} jobs: {load(large):.1f} s")


if __name__ == "__main__":
    main()
