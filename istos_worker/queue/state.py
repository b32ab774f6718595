"""The queue as a pure, synchronous state machine. No clock, no I/O, no asyncio: every call is given its Instant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from istos_worker.queue.records import (
    CancelReply,
    ClaimRequest,
    DeadPage,
    Delivery,
    Effects,
    Enqueued,
    Extended,
    Instant,
    JobRef,
    JobResult,
    NewJob,
    Outcome,
    Parked,
    QueueSettings,
    Stats,
    Waiter,
    Why,
    WorkerInfo,
)
from istos_worker.storage.protocol import Row


class QueueState:
    """Signatures first; the machine follows."""

    def __init__(self, settings: QueueSettings, *, random: Callable[[], float] | None = None) -> None:
        self.settings = settings

    def load_notes(self, notes: Mapping[str, bytes], now: Instant) -> None:
        raise NotImplementedError

    def load_rows(self, rows: Sequence[Row], now: Instant) -> None:
        raise NotImplementedError

    def loaded(self, now: Instant) -> None:
        raise NotImplementedError

    def enqueue(self, new: NewJob, now: Instant) -> Enqueued:
        raise NotImplementedError

    def enqueue_many(self, jobs: Sequence[NewJob], now: Instant) -> list[Enqueued]:
        raise NotImplementedError

    def claim(self, request: ClaimRequest, now: Instant) -> list[Delivery] | Parked:
        raise NotImplementedError

    def ack(self, ref: JobRef, now: Instant, *, result: bytes | None = None, advance: bool = False) -> Outcome:
        raise NotImplementedError

    def nack(
        self,
        ref: JobRef,
        now: Instant,
        *,
        error: str | None = None,
        retry_after_s: float | None = None,
        discard: bool = False,
    ) -> Outcome:
        raise NotImplementedError

    def release(self, ref: JobRef, now: Instant, *, delay_s: float = 0.0) -> Outcome:
        raise NotImplementedError

    def cancelled(self, ref: JobRef, now: Instant) -> Outcome:
        raise NotImplementedError

    def extend(self, refs: Sequence[JobRef], now: Instant) -> Extended:
        raise NotImplementedError

    def cancel(self, job_id: str, now: Instant) -> CancelReply:
        raise NotImplementedError

    def pause(self, now: Instant) -> None:
        raise NotImplementedError

    def resume(self, now: Instant) -> None:
        raise NotImplementedError

    def requeue(self, job_id: str | None, now: Instant) -> int:
        raise NotImplementedError

    def purge(self, job_id: str | None, now: Instant) -> int:
        raise NotImplementedError

    def bury(self, worker: str, reason: str, running: frozenset[str] | None, now: Instant) -> list[str]:
        raise NotImplementedError

    def worker_up(self, worker: str, now: Instant) -> None:
        raise NotImplementedError

    def worker_down(self, worker: str, now: Instant) -> None:
        raise NotImplementedError

    def report(
        self, chord_id: str, index: int, size: int, result_b64: str | None, now: Instant
    ) -> list[str | None] | None:
        raise NotImplementedError

    def result(self, job_id: str, now: Instant) -> JobResult:
        raise NotImplementedError

    def await_result(self, waiter: Waiter, job_id: str, now: Instant, *, wait_s: float) -> JobResult | Parked:
        raise NotImplementedError

    def dead_letters(self, *, limit: int = 1000, after: str | None = None) -> DeadPage:
        raise NotImplementedError

    def stats(self, now: Instant) -> Stats:
        raise NotImplementedError

    def why(self, job_id: str, now: Instant) -> Why:
        raise NotImplementedError

    def workers(self, now: Instant) -> list[WorkerInfo]:
        raise NotImplementedError

    def last_tick(self, schedule: str) -> str | None:
        raise NotImplementedError

    def sent(self, note_id: int, now: Instant) -> None:
        """The other owner has the continuation: strike it out."""
        raise NotImplementedError

    def withdraw(self, waiter: Waiter) -> None:
        raise NotImplementedError

    def tick(self, now: Instant) -> None:
        raise NotImplementedError

    def next_due(self) -> float | None:
        raise NotImplementedError

    def take_effects(self) -> Effects:
        raise NotImplementedError
