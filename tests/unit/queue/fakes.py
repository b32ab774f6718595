"""A clock that is told the time, a medium that is a dictionary, waiters that remember."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from istos_worker.errors import IstosError, StorageUnavailableError
from istos_worker.queue.records import ClaimRequest, Delivery, Effects, Instant, JobRef, NewJob, QueueSettings
from istos_worker.queue.state import QueueState
from istos_worker.storage.protocol import Row, WriteBatch


class FakeMedium:
    """A QueueMedium that keeps what was committed, and fails when told to."""

    def __init__(self, *, is_durable: bool = True) -> None:
        self.is_durable = is_durable
        self.rows_by_seq: dict[int, tuple[bytes, bytes]] = {}
        self.notes_by_name: dict[str, bytes] = {}
        self.failures = 0
        self.commits: list[WriteBatch] = []

    async def notes(self) -> dict[str, bytes]:
        self._may_fail()
        return dict(self.notes_by_name)

    async def rows(self) -> AsyncIterator[Sequence[Row]]:
        self._may_fail()
        yield [Row(seq, head, body) for seq, (head, body) in sorted(self.rows_by_seq.items())]

    async def commit(self, batch: WriteBatch) -> None:
        self._may_fail()
        self.write(batch)

    def write(self, batch: WriteBatch) -> None:
        self.commits.append(batch)
        for seq, head, body in batch.rows:
            self.rows_by_seq[seq] = (head, self.rows_by_seq[seq][1] if body is None else body)
        for seq in batch.forgotten:
            self.rows_by_seq.pop(seq, None)
        for name, value in batch.notes.items():
            if value is None:
                self.notes_by_name.pop(name, None)
            else:
                self.notes_by_name[name] = value

    async def aclose(self) -> None:
        pass

    def _may_fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("the disk is full: /queue.db")


class FakeStorage:
    def __init__(self, medium: FakeMedium | None = None) -> None:
        self.medium = medium or FakeMedium()

    async def open_queue(self, name: str) -> FakeMedium:
        return self.medium

    async def aclose(self) -> None:
        pass


class FakeWaiter:
    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.errors: list[IstosError] = []

    def deliver(self, answer: Any, /) -> None:
        self.answers.append(answer)

    def failed(self, error: IstosError, /) -> None:
        self.errors.append(error)


class Bench:
    """A QueueState with a clock in hand and a medium behind it. `turn` ends what its methods began."""

    def __init__(self, **settings: Any) -> None:
        self.settings = QueueSettings(**{"prefix": "jobs/q", "retry_jitter": 0.0, **settings})
        self.medium = FakeMedium()
        self.mono = 1000.0
        self.wall = 1_800_000_000.0
        self.effects: list[Effects] = []
        self.state = self._read()

    @property
    def now(self) -> Instant:
        return Instant(self.wall, self.mono)

    def _read(self) -> QueueState:
        state = QueueState(self.settings, random=lambda: 0.5)
        state.load_notes(dict(self.medium.notes_by_name), self.now)
        state.load_rows(
            [Row(seq, head, body) for seq, (head, body) in sorted(self.medium.rows_by_seq.items())], self.now
        )
        state.loaded(self.now)
        return state

    def turn(self) -> Effects:
        self.state.tick(self.now)
        effects = self.state.take_effects()
        self.medium.write(effects.writes)
        for waiter, answer in (*effects.handed_out, *effects.answers):
            waiter.deliver(answer)
        self.effects.append(effects)
        return effects

    def sleep(self, seconds: float) -> Effects:
        self.mono += seconds
        self.wall += seconds
        return self.turn()

    def restart(self, down_s: float = 0.0) -> None:
        """The owner is killed after its last turn, and starts again later; what was not written is gone."""
        self.mono += down_s
        self.wall += down_s
        self.state = self._read()

    # the shortest words for what tests do most

    def add(self, body: bytes = b"1", **fields: Any) -> str:
        job_id = self.state.enqueue(NewJob(body=body, **fields), self.now).job_id
        self.turn()
        return job_id

    def claim(self, n: int = 1, **fields: Any) -> list[Delivery]:
        deliveries = self.state.claim(ClaimRequest(n=n, **fields), self.now)
        self.turn()
        assert isinstance(deliveries, list)
        return deliveries

    def take(self, **fields: Any) -> Delivery:
        (delivery,) = self.claim(**fields)
        return delivery

    def park(self, n: int = 1, wait_s: float = 20.0, **fields: Any) -> FakeWaiter:
        waiter = FakeWaiter()
        answer = self.state.claim(ClaimRequest(n=n, wait_s=wait_s, waiter=waiter, **fields), self.now)
        assert not isinstance(answer, list), f"expected to wait, got {answer}"
        self.turn()
        return waiter

    def job_state(self, job_id: str) -> str:
        return self.state.result(job_id, self.now).state

    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self.state.stats(self.now).counts.items() if count}


def ref(delivery: Delivery) -> JobRef:
    return JobRef(delivery.job_id, delivery.attempt, delivery.fence)
