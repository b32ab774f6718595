"""Run jobs in a test: no network, no processes, a clock that moves when told. Real queue rules.

    async with app.testing() as t:
        await send.enqueue("a@b.c")
        await t.run_until_idle()
        assert t.dead("jobs/email") == []

`LocalMesh` answers requests in this process as owners would: `testing(app)` puts it in the place of a session.
"""

from __future__ import annotations

import asyncio
import binascii
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from istos_worker.context import JobContext
from istos_worker.errors import IstosError
from istos_worker.queue.records import (
    Cancel,
    ClaimRequest,
    DeadLetter,
    Effects,
    Instant,
    JobRef,
    Outgoing,
    Parked,
    QueueSettings,
)
from istos_worker.queue.role_delivery import delivery_object
from istos_worker.queue.state import QueueState
from istos_worker.queue.verbs import VERB_RUNS
from istos_worker.queue.verbs import Call as OwnerCall
from istos_worker.serialization import Serializer
from istos_worker.wire.codec import decode_params
from istos_worker.wire.keys import BASE_VERBS, notify_key, orders_key
from istos_worker.wire.limits import Limits
from istos_worker.worker import Handlers, running
from istos_worker.worker.delivery import Delivery
from istos_worker.worker.outcomes import Acked, Failed, GaveUp, Outcome, Released
from istos_worker.worker.runner import Call, Runner

if TYPE_CHECKING:
    from istos_worker.app.app import App

_LIMITS = Limits()
START_WALL = 1_767_225_600.0
"""2026-01-01 00:00 UTC: where a virtual clock starts unless told otherwise."""


class VirtualClock:
    """Both clocks of a queue, moved by hand."""

    def __init__(self, *, wall: float = START_WALL, mono: float = 1000.0) -> None:
        self._now = Instant(wall, mono)

    def __call__(self) -> Instant:
        return self._now

    def move_to(self, mono: float) -> None:
        """Never backwards."""
        passed = max(mono - self._now.mono, 0.0)
        self._now = Instant(self._now.wall + passed, self._now.mono + passed)


class _Question:
    """One request; its reply resolves the asker's future in the next turn of the loop, as a network would."""

    __slots__ = ("_future", "attachment", "payload")

    def __init__(
        self, payload: bytes | None, attachment: bytes | None, future: asyncio.Future[bytes | None]
    ) -> None:
        self.payload = payload or b""
        self.attachment = attachment
        self._future = future

    def reply(self, payload: bytes, /) -> None:
        if not self._future.done():
            self._future.set_result(payload)

    def drop(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _time_out(future: asyncio.Future[bytes | None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class EnqueuedJob(NamedTuple):
    queue: str
    job_id: str
    body: bytes
    delay_s: float
    priority: int


class _Declared:
    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    def undeclare(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


T = TypeVar("T")
Take = Callable[[list[bytes]], None]


class LocalMesh:
    """Owners, publications and tokens of one process without a network. Takes the place of `wire.Session`."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self.owners: dict[str, QueueState] = {}
        self.tokens_up: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        """Verb and parameters of every request, in order."""
        self.is_base: set[str] = set()
        """Queues whose owner answers only what istos 0.3 does."""
        self.enqueued: list[EnqueuedJob] = []
        """What requests have put on queues, in order; not what workflows continued with."""
        self._known: set[str] = set()
        self.changed = asyncio.Event()
        """Set whenever an owner has done something."""
        self._subscribers: dict[str, list[Take]] = {}
        self._parked: dict[str, set[OwnerCall]] = {}

    def own(self, settings: QueueSettings, *, random: Callable[[], float] | None = None) -> QueueState:
        """An owner of the queue, in memory. One that is there already is kept."""
        state = self.owners.get(settings.prefix)
        if state is None:
            state = self.owners[settings.prefix] = QueueState(settings, random=random)
            state.loaded(self.clock())
            for token in self.tokens_up:
                self._token_changed(token, up=True)
        return state

    def disown(self, prefix: str) -> QueueState | None:
        """The owner is gone: who waits hears nobody."""
        state = self.owners.pop(prefix, None)
        for call in self._parked.pop(prefix, ()):
            call.query.drop()
        return state

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        prefix, _, verb = key.rpartition("/")
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        question = _Question(payload, attachment, future)
        self.asked.append((verb, params))
        state = self.owners.get(prefix)
        if state is None or verb not in VERB_RUNS or (prefix in self.is_base and verb not in BASE_VERBS):
            question.drop()
        else:
            self._run(prefix, state, verb, params, question)
        if future.done():
            self._record(prefix, verb, future.result())
        else:
            timer = asyncio.get_running_loop().call_later(timeout_s, _time_out, future)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _record(self, prefix: str, verb: str, raw: bytes | None) -> None:
        """Notes what a request has enqueued."""
        if raw is None or verb not in ("enqueue", "enqueue_many"):
            return
        reply = orjson.loads(raw)
        if reply.get("duplicate"):
            return
        state, now = self.owners[prefix], self.clock()
        for job_id in reply.get("job_ids") or [reply.get("job_id")]:
            job = state.job(job_id) if job_id is not None else None
            if job is not None and job_id not in self._known:
                self._known.add(job_id)
                delay_s = max(job.not_before - now.wall, 0.0)
                self.enqueued.append(EnqueuedJob(prefix, job_id, job.body, delay_s, job.priority))

    def change(self, prefix: str, change: Callable[[QueueState, Instant], T]) -> T:
        """Does something at an owner, and lets it take effect."""
        state = self.owners[prefix]
        done = change(state, self.clock())
        self._settle(prefix, state)
        return done

    def _run(self, prefix: str, state: QueueState, verb: str, params: str, question: _Question) -> None:
        call = OwnerCall(verb, question, {}, _LIMITS, self._parked.setdefault(prefix, set()))
        try:
            call.params = decode_params(params)
            call.apply(state, self.clock())
        except IstosError as refused:
            call.failed(refused)
        else:
            call.done()
        self._settle(prefix, state)

    def tick(self) -> None:
        """Fires what is due in every queue."""
        for prefix, state in list(self.owners.items()):
            self._settle(prefix, state)

    def next_due(self) -> float | None:
        dues = [due for state in self.owners.values() if (due := state.next_due()) is not None]
        return min(dues, default=None)

    def _settle(self, prefix: str, state: QueueState) -> None:
        state.tick(self.clock())
        effects: Effects = state.take_effects()
        for waiter, answer in effects.answers:
            waiter.deliver(answer)
        for worker, order in effects.orders:
            kind = "cancel" if isinstance(order, Cancel) else "lost"
            told = {kind: [{"job_id": order.job_id, "fence": order.fence}]}
            self.publish(orders_key(prefix, worker), orjson.dumps(told))
        if effects.notify:
            self.publish(notify_key(prefix), b"1")
        for outgoing in effects.outgoing:
            self._forward(state, outgoing)
        self.changed.set()

    def _forward(self, state: QueueState, outgoing: Outgoing) -> None:
        other = self.owners.get(outgoing.prefix)
        if other is None:
            raise LookupError(f"a workflow continues on {outgoing.prefix!r}, which is no queue of this test")
        other.enqueue(outgoing.job, self.clock())
        state.sent(outgoing.note_id, self.clock())
        self._settle(outgoing.prefix, other)

    def publish(self, key: str, payload: bytes) -> None:
        for take in self._subscribers.get(key, ()):
            asyncio.get_running_loop().call_soon(take, [payload])

    def subscribe(self, key: str, take: Take) -> _Declared:
        takers = self._subscribers.setdefault(key, [])
        takers.append(take)
        return _Declared(lambda: takers.remove(take))

    def declare_token(self, key: str) -> _Declared:
        self.tokens_up.add(key)
        self._token_changed(key, up=True)

        def gone() -> None:
            self.tokens_up.discard(key)
            self._token_changed(key, up=False)

        return _Declared(gone)

    def _token_changed(self, key: str, *, up: bool) -> None:
        prefix, found, worker = key.rpartition("/_workers/")
        state = self.owners.get(prefix) if found else None
        if state is not None:
            (state.worker_up if up else state.worker_down)(worker, self.clock())
            self._settle(prefix, state)

    async def tokens(self, key_expr: str, *, timeout_s: float = 1.0) -> list[str]:
        """The keys of the tokens alive now; `*` at the end stands for anything."""
        return [key for key in sorted(self.tokens_up) if key.startswith(key_expr.rstrip("*"))]

    async def aclose(self) -> None:
        for prefix in list(self.owners):
            self.disown(prefix)


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
        declared = self.app.handlers.get(prefix)
        return (declared.serializer if declared is not None else None) or self.app.serializer

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
    the app consumes but does not declare behaves by default and keeps results."""
    from istos_worker.app.serving import attached

    ours = clock or VirtualClock()
    mesh = LocalMesh(ours)
    for declared in app.queues.values():
        mesh.own(declared.role.settings, random=lambda: 0.5)
    for prefix in app.consumed_prefixes:
        mesh.own(QueueSettings(prefix=prefix, keep_results=True), random=lambda: 0.5)
    session: Any = mesh  # stands in for a Session; only its calls are used
    async with attached(app, session):
        yield Testing(app, mesh, ours)
