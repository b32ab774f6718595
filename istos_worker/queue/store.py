"""One queue with its medium, as Python calls (CONTRACT.md section 1): the peer's coroutines, and `submit` for those
who bring their own operations. Knows callers; the rules are the state machine's, the turns the engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from istos_worker.queue.calls import Request, ResultWaiter, delivered, record_of
from istos_worker.queue.engine import Clock, Engine, system_clock
from istos_worker.queue.operation import Operation
from istos_worker.queue.records import (
    DEAD,
    PUBLIC_STATE,
    CancelReply,
    ClaimRequest,
    Effects,
    Enqueued,
    Extended,
    Instant,
    JobRecord,
    JobRef,
    JobState,
    NewJob,
    Parked,
    QueueSettings,
)
from istos_worker.queue.state import QueueState
from istos_worker.storage import open_storage
from istos_worker.storage.protocol import Storage, StoragePlugin

__all__ = ["JobRecord", "JobState", "Operation", "QueueStore"]

T = TypeVar("T")


class QueueStore:
    """The state of one queue and everything done to it, durable on return.

    `storage`: None for memory, a storage URL, a Storage, or any object with `put`, `get`, `delete`. Every coroutine
    raises StorageUnavailableError when the medium fails; then nothing has happened, and the call may be repeated.
    """

    def __init__(
        self,
        name: str,
        storage: Storage | StoragePlugin | str | None = None,
        *,
        keep_results: bool = False,
        result_ttl_s: float = 3600.0,
        clock: Clock = system_clock,
    ) -> None:
        settings = QueueSettings(prefix=name, keep_results=keep_results, result_ttl_s=result_ttl_s)
        self._owned = open_storage(storage)
        self._closes_storage = self._owned is not storage
        self._engine = Engine(name, self._owned, settings, clock)
        self._clock = clock
        self._swept = 0
        self._loading = asyncio.Lock()

    # the engine

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def settings(self) -> QueueSettings:
        return self._engine.settings

    def configure(self, settings: QueueSettings) -> None:
        """From now on the queue behaves like this."""
        self._engine.configure(settings)

    @property
    def keep_results(self) -> bool:
        return self.settings.keep_results

    @property
    def result_ttl_s(self) -> float:
        return self.settings.result_ttl_s

    @property
    def state(self) -> QueueState:
        """To read from. Changes go through `submit`, or nobody writes them down."""
        return self._engine.state

    @property
    def is_shared(self) -> bool:
        """Whether another process could find this queue in its medium."""
        return self._engine.is_durable

    @property
    def on_effects(self) -> Callable[[Effects], None] | None:
        """Called after a turn is durable, when it has orders, a notification or continuations for other queues."""
        return self._engine.on_effects

    @on_effects.setter
    def on_effects(self, call: Callable[[Effects], None] | None) -> None:
        self._engine.on_effects = call

    @property
    def on_reloaded(self) -> Callable[[], None] | None:
        """Called when the state has been read anew after a failure of the medium. It knows the workers that were
        up before, not those that came or went meanwhile."""
        return self._engine.on_reloaded

    @on_reloaded.setter
    def on_reloaded(self, call: Callable[[], None] | None) -> None:
        self._engine.on_reloaded = call

    def submit(self, operation: Operation) -> None:
        """From the loop: the operation runs in the next turn."""
        self._engine.submit(operation)

    async def load(self) -> None:
        """Reads the queue from its medium. Raises StorageUnavailableError. Idempotent; the other coroutines do it
        by themselves."""
        async with self._loading:
            await self._engine.load()

    async def aclose(self) -> None:
        """Writes what waits and lets go of the medium. Idempotent; `load` opens the queue again."""
        await self._engine.aclose()
        if self._closes_storage:
            await self._owned.aclose()

    async def run(self, apply: Callable[[QueueState, Instant], T]) -> T:
        """Runs a function on the state in the next turn; returns its value when that turn is durable."""
        if not self._engine.is_loaded:
            await self.load()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._engine.submit(Request(apply, future))
        return await future

    # jobs

    async def add(
        self,
        data: bytes,
        *,
        max_attempts: int | None = None,
        priority: int = 0,
        delay_s: float = 0.0,
        wf: str | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
        job_id: str | None = None,
        unique_key: str | None = None,
        expires_s: float | None = None,
    ) -> str:
        """Enqueues a job and returns its id. An id or a unique key that is held already enqueues nothing; the
        holder's id is returned."""
        new = NewJob(
            body=data,
            job_id=job_id,
            priority=priority,
            delay_s=max(0.0, delay_s),
            max_attempts=max_attempts,
            wf=wf,
            correlation_id=correlation_id,
            traceparent=traceparent,
            unique_key=unique_key,
            expires_s=expires_s,
        )
        return (await self.run(lambda state, now: state.enqueue(new, now))).job_id

    async def enqueue(self, new: NewJob) -> Enqueued:
        return await self.run(lambda state, now: state.enqueue(new, now))

    async def claim(
        self,
        *,
        lease_s: float | None = None,
        worker: str | None = None,
        seq: int | None = None,
        tasks: frozenset[str] | None = None,
    ) -> JobRecord | None:
        """The next ready job, leased; None when there is none."""
        request = ClaimRequest(worker=worker, seq=seq, tasks=tasks, lease_s=lease_s)

        def take(state: QueueState, now: Instant) -> JobRecord | None:
            deliveries = state.claim(request, now)
            return None if isinstance(deliveries, Parked) or not deliveries else delivered(deliveries[0])

        return await self.run(take)

    async def ack(
        self,
        job_id: str,
        *,
        result: bytes | None = None,
        attempt: int | None = None,
        fence: int | None = None,
        advance: bool = False,
    ) -> bool:
        """The job is done. False when it is not known, or this delivery is no longer the current one."""
        ref = JobRef(job_id, attempt, fence)
        return (await self.run(lambda state, now: state.ack(ref, now, result=result, advance=advance))).ok

    async def nack(
        self,
        job_id: str,
        *,
        error: str | None = None,
        retry_delay_s: float = 0.0,
        attempt: int | None = None,
        fence: int | None = None,
        discard: bool = False,
    ) -> str | None:
        """The attempt failed: "requeued" (after `retry_delay_s`), "dead", or None when nobody held the job."""
        ref = JobRef(job_id, attempt, fence)
        outcome = await self.run(
            lambda state, now: state.nack(
                ref, now, error=error, retry_after_s=max(0.0, retry_delay_s), discard=discard
            )
        )
        return outcome.disposition

    async def release(
        self, job_id: str, *, delay_s: float = 0.0, attempt: int | None = None, fence: int | None = None
    ) -> bool:
        """The job goes back to its place, the attempt not counted."""
        ref = JobRef(job_id, attempt, fence)
        return (await self.run(lambda state, now: state.release(ref, now, delay_s=delay_s))).ok

    async def extend(self, job_id: str, *, attempt: int | None = None, fence: int | None = None) -> Extended:
        refs = [JobRef(job_id, attempt, fence)]
        return await self.run(lambda state, now: state.extend(refs, now))

    async def cancel(self, job_id: str) -> CancelReply:
        return await self.run(lambda state, now: state.cancel(job_id, now))

    async def sweep(self) -> int:
        """How many jobs have been taken from silent holders since the last call. They are taken when their time is
        over; nobody needs to call this for it."""

        def count(state: QueueState, now: Instant) -> int:
            state.tick(now)
            return state.reclaimed

        reclaimed = await self.run(count)
        fresh, self._swept = max(0, reclaimed - self._swept), reclaimed
        return fresh

    async def result(self, job_id: str, *, wait_s: float = 0.0) -> tuple[str, bytes | None]:
        """`(state, result)`; the state is "unknown" for a job that never was or is forgotten. `wait_s`: how long to
        wait for a job that is not finished yet."""
        waiter = ResultWaiter(asyncio.get_running_loop().create_future())
        answer = await self.run(lambda state, now: state.await_result(waiter, job_id, now, wait_s=wait_s))
        if not isinstance(answer, Parked):
            return answer.state, answer.result
        try:
            found = await waiter.future
        except asyncio.CancelledError:
            self._engine.state.withdraw(waiter)
            raise
        return found.state, found.result

    async def dead_letters(self) -> list[JobRecord]:
        return await self.run(
            lambda state, now: [record_of(job) for job in state.dead_jobs() if job.state == DEAD]
        )

    async def stats(self) -> dict[str, int]:
        """Jobs by state. Delayed jobs are counted as ready."""

        def count(state: QueueState, now: Instant) -> dict[str, int]:
            counts = dict.fromkeys((member.value for member in JobState), 0)
            for held, public in zip(state.counts, PUBLIC_STATE, strict=True):
                counts[public.value] += held
            return counts

        return await self.run(count)

    async def chord_report(
        self, chord_id: str, index: int, size: int, result: str | None
    ) -> list[str | None] | None:
        """Counts a member of a chord as done. The results in member order, for the member that completes it (and
        for its repeats); None for every other. Raises ValueError when the index does not fit."""
        return await self.run(lambda state, now: state.report(chord_id, index, size, result, now))
