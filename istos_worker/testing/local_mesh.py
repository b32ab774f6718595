"""Owners, publications and tokens of one process without a network, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import orjson

from istos_worker.errors import IstosError
from istos_worker.queue.records import (
    Cancel,
    Effects,
    Instant,
    Outgoing,
    QueueSettings,
)
from istos_worker.queue.state import QueueState
from istos_worker.queue.verbs import VERB_RUNS
from istos_worker.queue.verbs import Call as OwnerCall
from istos_worker.wire.codec import decode_params
from istos_worker.wire.keys import BASE_VERBS, notify_key, orders_key
from istos_worker.wire.limits import Limits

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

    __slots__ = ("_future", "attachment", "hides_fence", "payload")

    local_name = None

    def __init__(
        self, payload: bytes | None, attachment: bytes | None, future: asyncio.Future[bytes | None]
    ) -> None:
        self.hides_fence = False
        self.payload = payload or b""
        self.attachment = attachment
        self._future = future

    def reply(self, payload: bytes, /) -> None:
        if not self._future.done():
            self._future.set_result(_without_fence(payload) if self.hides_fence else payload)

    def drop(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _without_fence(payload: bytes) -> bytes:
    reply = orjson.loads(payload)
    reply.pop("fence", None)
    return orjson.dumps(reply)


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

    def __init__(self, clock: Callable[[], Instant], *, adopts: bool = False) -> None:
        """`adopts`: a queue that somebody else would own is there too, once it is asked for."""
        self.clock = clock
        self._adopts = adopts
        self._left: set[str] = set()
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
        self._left.add(prefix)
        for call in self._parked.pop(prefix, ()):
            call.query.drop()
        return state

    def _owner_of(self, prefix: str) -> QueueState | None:
        if self._adopts and prefix not in self._left:
            return self.own(QueueSettings(prefix=prefix))
        return self.owners.get(prefix)

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
        question.hides_fence = verb == "claim" and prefix in self.is_base
        self.asked.append((verb, params))
        state = self._owner_of(prefix)
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
            if verb == "settle":
                call.params.pop("wait", None)  # the virtual clock stands still: it would be held for ever
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
        for waiter, answer in (*effects.handed_out, *effects.answers):
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
        other = self._owner_of(outgoing.prefix)
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
