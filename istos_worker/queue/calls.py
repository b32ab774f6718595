"""What a Python caller of the store is on its way through a turn, and what it is given. Knows futures; not rules."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from istos_worker.errors import IstosError, StorageUnavailableError
from istos_worker.queue.records import LEASED, PUBLIC_STATE, Delivery, Instant, Job, JobRecord, JobResult
from istos_worker.queue.state import QueueState

T = TypeVar("T")


class Request(Generic[T]):
    """A function on the state, and the future of its value."""

    __slots__ = ("_apply", "_future", "_value")

    def __init__(self, apply: Callable[[QueueState, Instant], T], future: asyncio.Future[T]) -> None:
        self._apply = apply
        self._future = future

    def apply(self, state: QueueState, now: Instant) -> None:
        self._value = self._apply(state, now)

    def done(self) -> None:
        if not self._future.done():
            self._future.set_result(self._value)

    def failed(self, error: IstosError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class ResultWaiter:
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[JobResult]) -> None:
        self.future = future

    def deliver(self, answer: JobResult, /) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def failed(self, error: StorageUnavailableError, /) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def delivered(delivery: Delivery) -> JobRecord:
    """The job as it was delivered, whatever has become of it since."""
    return replace(
        record_of(delivery.job),
        state=PUBLIC_STATE[LEASED],
        attempts=delivery.attempt,
        fence=delivery.fence,
    )


def record_of(job: Job) -> JobRecord:
    return JobRecord(
        id=job.id,
        data=job.body,
        state=job.public_state,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        enqueued_at=job.enqueued_at,
        lease_until=job.lease_until,
        not_before=job.not_before,
        priority=job.priority,
        seq=job.seq,
        last_error=job.last_error,
        result=None if job.result is None else base64.b64encode(job.result).decode(),
        completed_at=job.completed_at,
        wf=job.wf,
        correlation_id=job.correlation_id,
        traceparent=job.traceparent,
        fence=job.fence,
        crashes=job.crashes,
        history=tuple(job.history or ()),
    )
