"""What an owner holds while it is bound to a session: its queryables, its token, its watch over workers and
other owners, and the way of effects out. Knows keys and queries; not rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import orjson

from istos_worker.errors import BadRequestError, IstosError, StorageUnavailableError
from istos_worker.queue.records import Cancel, Effects, Instant, Order
from istos_worker.queue.role_gate import Gate
from istos_worker.queue.role_outgoing import Courier, Failure
from istos_worker.queue.verbs import VERB_RUNS, Call
from istos_worker.wire.asking import Incoming
from istos_worker.wire.codec import decode_params
from istos_worker.wire.keys import last_part, notify_key, orders_key, owner_key, verb_key, worker_key
from istos_worker.wire.limits import Limits
from istos_worker.wire.session import Handle, Session

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.store import QueueStore
    from istos_worker.wire.auth import Authorizer


class Binding:
    def __init__(
        self,
        store: QueueStore,
        session: Session,
        *,
        owner_id: str,
        authorizer: Authorizer | None,
        token: str | None,
        log: logging.Logger,
    ) -> None:
        self.prefix = store.settings.prefix
        self.courier = Courier(session, token=token, on_sent=self._on_sent, on_refused=self._on_refused)
        self._store = store
        self._session = session
        self._owner_id = owner_id
        self._gate = None if authorizer is None else Gate(self.prefix, authorizer, admit=store.submit)
        self._log = log
        self._limits = Limits(payload_bytes=store.settings.max_payload_bytes)
        self._handles: list[Handle] = []
        self._parked: set[Call] = set()
        self._alive: set[str] = set()
        self._gone: set[str] = set()
        """Workers whose going away the state may not have taken in yet."""

    def declare(self) -> None:
        """Begins to answer. Workers that are up are known before the first query is taken from the mesh."""
        session, prefix = self._session, self.prefix
        self._handles.append(session.watch_tokens(worker_key(prefix, "*"), self._on_workers))
        for verb in VERB_RUNS:
            key = verb_key(prefix, verb)
            self._handles.append(session.serve(key, partial(self._take, verb, key)))
        self._handles.append(session.declare_token(owner_key(prefix, self._owner_id)))
        self._handles.append(session.watch_tokens(owner_key(prefix, "*"), self._on_owners))
        session.publish(notify_key(prefix), b"1")  # whoever backs off because nobody answered may ask now

    def undeclare(self) -> None:
        """Stops answering, and lets go of callers that wait: they see that nobody is here."""
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            handle.undeclare()
        if self._gate is not None:
            self._gate.close()
        parked, self._parked = self._parked, set()
        if parked:
            self._store.submit(_Withdrawn(list(parked)))

    # --- queries -----------------------------------------------------------------------------------

    def _take(self, verb: str, key: str, queries: list[Incoming]) -> None:
        submit, gate = self._store.submit, self._gate
        if not self._handles:  # they came while we stopped: the next owner will answer them
            for query in queries:
                query.drop()
            return
        for query in queries:
            call = Call(verb, query, {}, self._limits, self._parked)
            try:
                if query.params:
                    call.params = decode_params(query.params)
                if not query.is_exact:
                    raise BadRequestError("a verb is asked by its exact key, not by a pattern")
            except IstosError as refused:
                call.failed(refused)
                continue
            if gate is None:
                submit(call)
            else:
                gate.check(call, key)

    # --- who is alive ------------------------------------------------------------------------------

    def _on_workers(self, seen: list[tuple[str, bool]]) -> None:
        changes = [(last_part(key), up) for key, up in seen]
        for worker, up in changes:
            if up:
                self._alive.add(worker)
                self._gone.discard(worker)
            else:
                self._alive.discard(worker)
                self._gone.add(worker)
        self._tell_seen(changes)

    def _tell_seen(self, changes: Sequence[tuple[str, bool]]) -> None:
        gone = [worker for worker, up in changes if not up]
        self._store.submit(_Seen(changes, lambda: self._gone.difference_update(gone)))

    def on_reloaded(self) -> None:
        """The state was read anew from the medium: it knows of no one who waits, and missed who came and went
        meanwhile."""
        for call in list(self._parked):
            call.failed(
                StorageUnavailableError(f"queue {self.prefix}: the store failed meanwhile; ask again")
            )
        known = [*((worker, True) for worker in self._alive), *((worker, False) for worker in self._gone)]
        self._tell_seen(known)

    def _on_owners(self, seen: list[tuple[str, bool]]) -> None:
        for key, up in seen:
            other = last_part(key)
            if up and other != self._owner_id:
                self._log.warning(
                    "queue %s: another owner (%s) serves the same queue, and jobs are split between the two: "
                    "stop one of them or, where they are two projects' on one machine, start each project's "
                    "owner, workers and producers with a --namespace of its own",
                    self.prefix,
                    other,
                )

    # --- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Effects) -> None:
        """Called when a turn is durable."""
        if effects.orders:
            self._publish_orders(effects.orders)
        if effects.notify:
            self._session.publish(notify_key(self.prefix), b"1")
        if effects.outgoing:
            self.courier.take(effects.outgoing)

    def _publish_orders(self, orders: Sequence[tuple[str, Order]]) -> None:
        by_worker: dict[str, dict[str, list[dict[str, object]]]] = {}
        for worker, order in orders:
            kind = "cancel" if isinstance(order, Cancel) else "lost"
            listed = by_worker.setdefault(worker, {}).setdefault(kind, [])
            listed.append({"job_id": order.job_id, "fence": order.fence})
        for worker, named in by_worker.items():
            self._session.publish(orders_key(self.prefix, worker), orjson.dumps(named))

    def _on_sent(self, note_ids: Sequence[int]) -> None:
        self._store.submit(_Sent(note_ids))

    def _on_refused(self, failures: Sequence[Failure]) -> None:
        self._store.submit(_Refused(failures))


class _Silent:
    """An operation that nobody waits for."""

    __slots__ = ()

    def done(self) -> None:
        return None

    def failed(self, error: IstosError) -> None:
        return None


class _Seen(_Silent):
    __slots__ = ("_changes", "_taken_in")

    def __init__(self, changes: Sequence[tuple[str, bool]], taken_in: Callable[[], None]) -> None:
        self._changes = changes
        self._taken_in = taken_in

    def done(self) -> None:
        self._taken_in()

    def apply(self, state: QueueState, now: Instant) -> None:
        for worker, up in self._changes:
            (state.worker_up if up else state.worker_down)(worker, now)


class _Sent(_Silent):
    __slots__ = ("_note_ids",)

    def __init__(self, note_ids: Sequence[int]) -> None:
        self._note_ids = note_ids

    def apply(self, state: QueueState, now: Instant) -> None:
        for note_id in self._note_ids:
            state.sent(note_id, now)


class _Refused(_Silent):
    __slots__ = ("_failures",)

    def __init__(self, failures: Sequence[Failure]) -> None:
        self._failures = failures

    def apply(self, state: QueueState, now: Instant) -> None:
        for failure in self._failures:
            state.refused(failure.note_id, failure.reason, now)


class _Withdrawn(_Silent):
    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def apply(self, state: QueueState, now: Instant) -> None:
        for call in self._calls:
            state.withdraw(call)
            call.query.drop()
