"""Runs the jobs of an app in a test, one attempt at a time. Knows handlers and queues; has no loop of its own."""

from __future__ import annotations

import asyncio
import binascii
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from istos_worker.context import JobContext
from istos_worker.queue.records import (
    ClaimRequest,
    DeadLetter,
    Instant,
    JobRef,
    Parked,
    QueueSettings,
)
from istos_worker.queue.role_delivery import delivery_object
from istos_worker.queue.state import QueueState
from istos_worker.serialization import Serializer
from istos_worker.worker import Handlers, running
from istos_worker.worker.delivery import Delivery
from istos_worker.worker.outcomes import Acked, Failed, GaveUp, Outcome, Released
from istos_worker.worker.runner import Call, Runner

if TYPE_CHECKING:
    from istos_worker.app.app import App

from istos_worker.testing.local_mesh import LocalMesh, VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One attempt that the test has run."""

    queue: str
    job_id: str
    attempt: int
    data: Any
    outcome: Outcome
    result: Any = None
    exception: BaseException | None = None
    """What the handler raised, if it did."""


class Testing:
    """The jobs of one app in one test. Nothing runs by itself: `run_all`, `run_until_idle`, `advance`.

    Time limits of jobs are not enforced, authorizers are not asked, and schedules do not tick."""

    __test__ = False  # pytest: this is no test class

    def __init__(self, app: App, mesh: LocalMesh, clock: VirtualClock) -> None:
        self.app = app
        self.mesh = mesh
        self.clock = clock
        self.ran: list[Ran] = []
        """Every attempt so far, in order."""
        self._raised: BaseException | None = None
        self._runners = {prefix: self._runner(prefix) for prefix in app.consumed_prefixes}

    def _runner(self, prefix: str) -> tuple[Runner, Handlers]:
        handlers = self.app.handlers_of(prefix)
        handlers = replace(handlers, middleware=(self._watch, *handlers.middleware))
        return Runner(handlers, serializer=self._serializer(prefix), run_sync=asyncio.to_thread), handlers

    def _serializer(self, prefix: str) -> Serializer:
        return self.app.consumer_options(prefix).serializer or self.app.serializer

    async def _watch(self, ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call_next()
        except BaseException as raised:
            self._raised = raised
            raise

    async def enqueue(self, prefix: str, data: Any, **options: Any) -> str:
        """`App.enqueue`."""
        return await self.app.enqueue(prefix, data, **options)

    async def run_all(self, *, limit: int = 1000) -> list[Ran]:
        """Runs what is ready now, and what that makes ready at once; the clock stands still. Returns the attempts.

        Raises RuntimeError after `limit` attempts: some job probably enqueues itself for ever."""
        first = len(self.ran)
        while await self.run_one() is not None:
            if len(self.ran) - first >= limit:
                raise RuntimeError(f"still not idle after {limit} attempts")
        return self.ran[first:]

    async def run_until_idle(self, *, limit: int = 1000) -> list[Ran]:
        """As run_all, and moves the clock on to delayed jobs and retries until nothing is left to run."""
        first = len(self.ran)
        while True:
            await self.run_all(limit=limit - (len(self.ran) - first))
            if not any(self.counts(prefix)["delayed"] for prefix in self._runners):
                return self.ran[first:]
            due = self.mesh.next_due()
            if due is None:
                return self.ran[first:]
            self.clock.move_to(max(due, self.clock().mono + 1e-6))
            self.mesh.tick()

    async def run_one(self) -> Ran | None:
        """Runs one attempt of the first job that is ready in any queue; None when there is none."""
        for prefix, (runner, handlers) in self._runners.items():
            delivery = self._claim(prefix, handlers.announced())
            if delivery is not None:
                return await self._run(prefix, runner, delivery)
        return None

    def _claim(self, prefix: str, names: tuple[str, ...] | None) -> Delivery | None:
        request = ClaimRequest(tasks=None if names is None else frozenset(names))
        claimed = self.mesh.change(prefix, lambda state, now: state.claim(request, now))
        if isinstance(claimed, Parked) or not claimed:
            return None
        return Delivery(prefix, delivery_object(claimed[0]), 0.0)

    async def _run(self, prefix: str, runner: Runner, delivery: Delivery) -> Ran:
        self._raised = None
        prepared = runner.prepare(delivery)
        if isinstance(prepared, Call):
            # A task of its own, as a worker has it: contextvars and cancellation stay inside.
            context = contextvars.copy_context()
            context.run(running.enter, delivery)
            task = asyncio.get_running_loop().create_task(runner.run(delivery, prepared), context=context)
            outcome = await task
        else:
            outcome = prepared
        self.mesh.change(prefix, lambda state, now: _confirm(state, now, delivery, outcome))
        serializer = self._serializer(prefix)
        raw = binascii.a2b_base64(delivery.wire["data"])
        ran = Ran(
            queue=prefix,
            job_id=delivery.job_id,
            attempt=delivery.attempt,
            data=serializer.deserialize(raw) if isinstance(prepared, Call) else raw,
            outcome=outcome,
            result=serializer.deserialize(outcome.result) if isinstance(outcome, Acked) else None,
            exception=self._raised,
        )
        self.ran.append(ran)
        return ran

    async def advance(self, seconds: float) -> None:
        """Moves the clock: delays and retries that are due become ready, leases and results end."""
        until = self.clock().mono + seconds
        while (due := self.mesh.next_due()) is not None and due <= until:
            self.clock.move_to(max(due, self.clock().mono))
            self.mesh.tick()
            if self.mesh.next_due() == due:
                break
        self.clock.move_to(until)
        self.mesh.tick()

    def enqueued(self, prefix: str | None = None) -> list[Any]:
        """The decoded bodies that were put on the queue (or on any), in order, also of jobs that are done."""
        return [
            self._serializer(job.queue).deserialize(job.body)
            for job in self.mesh.enqueued
            if prefix is None or job.queue == prefix
        ]

    def result(self, job_id: str) -> Any:
        """What the job returned. Raises LookupError when no attempt of it has succeeded."""
        for ran in reversed(self.ran):
            if ran.job_id == job_id and isinstance(ran.outcome, Acked):
                return ran.result
        attempts = [ran for ran in self.ran if ran.job_id == job_id]
        said = f"its last attempt ended with {attempts[-1].outcome}" if attempts else "it has not run"
        raise LookupError(f"job {job_id} has no result: {said}")

    def state(self, prefix: str, job_id: str) -> str:
        """ready, leased, done, dead, cancelled or unknown (done and forgotten, where results are not kept)."""
        return self.mesh.owners[prefix].result(job_id, self.clock()).state

    def dead(self, prefix: str) -> list[DeadLetter]:
        """The queue's dead letters, oldest first."""
        return self.mesh.owners[prefix].dead_letters().jobs

    def counts(self, prefix: str) -> dict[str, int]:
        """ready, delayed, leased, done, dead, cancelled."""
        return dict(self.mesh.owners[prefix].stats(self.clock()).counts)


def _confirm(state: QueueState, now: Instant, delivery: Delivery, outcome: Outcome) -> None:
    """What a settle does, without the wire."""
    ref = JobRef(delivery.job_id, delivery.attempt, delivery.fence)
    match outcome:
        case Acked(result=result):
            state.ack(ref, now, result=result, advance=True)
        case Failed(error=error, retry_after_s=retry_after_s, discard=discard):
            state.nack(ref, now, error=error, retry_after_s=retry_after_s, discard=discard)
        case Released(delay_s=delay_s):
            state.release(ref, now, delay_s=delay_s)
        case GaveUp():
            state.cancelled(ref, now)


@asynccontextmanager
async def testing(
    app: App,
    *,
    clock: VirtualClock | None = None,  # noqa: PT028 - no test, whatever its name
) -> AsyncIterator[Testing]:
    """`App.testing()`: the app's queues in memory, its calls going there, its lifespan and hooks run. A queue that
    the app consumes but does not declare behaves by default and keeps results; one that it only enqueues on takes
    the jobs in and runs none."""
    from istos_worker.app.serving import attached

    ours = clock or VirtualClock()
    mesh = LocalMesh(ours, adopts=True)
    for role in app.queues.values():
        mesh.own(role.settings, random=lambda: 0.5)
    for prefix in app.consumed_prefixes:
        mesh.own(QueueSettings(prefix=prefix, keep_results=True), random=lambda: 0.5)
    session: Any = mesh  # stands in for a Session; only its calls are used
    async with attached(app, session):
        yield Testing(app, mesh, ours)
