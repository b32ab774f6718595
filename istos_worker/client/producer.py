"""The producing half of the client: a session, and every way to put jobs on queues. The tries and the joining
are in `calls` and `joining`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Protocol, Self

from istos_worker.client.batches import Batch, Params, in_order, into_parts, new_job_id
from istos_worker.client.bodies import OnFailure, Serializes, chain_wf, chord_wfs, from_base64, to_bodies
from istos_worker.client.calls import Caller
from istos_worker.client.joining import Enqueuer
from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.serialization import JsonSerializer
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.limits import MAX_BATCH, Limits
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings

Token = str | bytes | None
_UNDER_WAY = 3
_MAX_BODY_BYTES = Limits().payload_bytes
_ALONE = frozenset(("unique_key", "schedule", "tick"))
"""What belongs to one job alone, so that job travels alone."""


class Traced(Protocol):
    """The job that this code runs in, if any: what it enqueues belongs to the same trace."""

    @property
    def correlation_id(self) -> str | None: ...

    @property
    def traceparent(self) -> str | None: ...


class Producer:
    """What `Client` is without its results and its managing calls."""

    def __init__(
        self,
        config: ZenohSettings | None = None,
        *,
        session: Session | None = None,
        token: Token = None,
        serializer: Serializes | None = None,
        current_job: Callable[[], Traced | None] | None = None,
    ) -> None:
        if config is not None and session is not None:
            raise ValueError("give Client a config or a session, not both")
        self._settings = config or ZenohSettings()
        self._session = session
        self._own_session = session is None
        self._token = token
        self._serializer: Serializes = serializer or JsonSerializer()
        self._current_job = current_job or _no_job
        self._caller: Caller | None = None
        self._enqueuer: Enqueuer | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Opens the session, where there is none. Raises IstosError when Zenoh cannot."""
        if self._session is None:
            self._session = await Session.open(self._settings)
        self._caller = Caller(self._session)
        self._enqueuer = Enqueuer(self._caller)

    @property
    def session(self) -> Session:
        """The open session. Raises RuntimeError before `open`."""
        if self._session is None:
            raise RuntimeError("the client is not open")
        return self._session

    async def aclose(self) -> None:
        """Waits for what is on its way, and closes the session if it is ours. Idempotent."""
        enqueuer, self._enqueuer, self._caller = self._enqueuer, None, None
        if enqueuer is not None:
            await enqueuer.aclose()
        session = self._session
        if session is not None and self._own_session:
            self._session = None
            await session.aclose()

    # --- enqueue -----------------------------------------------------------------------------------

    async def enqueue(
        self,
        prefix: str,
        data: Any,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        job_id: str | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
        schedule: str | None = None,
        tick: str | None = None,
    ) -> str:
        """Puts a job on the queue and returns its id; where `unique_key` or `job_id` is there already, that
        job's id. Calls made in the same turn of the event loop travel together.

        `delay_s` holds it back; of two ready jobs the one with the higher `priority` goes first; it is a dead
        letter when it has not been started once within `expires_s`. Raises OwnerUnreachable when no owner answers
        within `timeout_s`, PayloadTooLargeError for a body above 8 MiB.
        """
        params = _job_params(priority, delay_s, max_attempts, expires_s, unique_key, schedule, tick)
        body = self._body(data, serializer)
        return await self._enqueue_body(prefix, body, params, token=token, timeout_s=timeout_s, job_id=job_id)

    def _enqueue_body(
        self,
        prefix: str,
        body: bytes,
        params: Params,
        *,
        token: Token,
        timeout_s: float,
        job_id: str | None = None,
        wf: str | None = None,
    ) -> Awaitable[str]:
        queue, attachment = queue_prefix(prefix), self._attachment(token)
        enqueuer = self._opened()[1]
        if job_id is None and (not params or _ALONE.isdisjoint(dict(params))):
            return enqueuer.join(queue, body, params, attachment=attachment, timeout_s=timeout_s, wf=wf)
        batch = Batch(queue, params, attachment, [body], [wf], job_id or new_job_id())
        return enqueuer.deliver_one(batch, timeout_s)

    async def enqueue_many(
        self,
        prefix: str,
        items: Iterable[Any],
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        job_id: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> list[str]:
        """Puts all items on the queue and returns their ids, in order. Up to 1000 items (and 24 MiB) are one
        batch, which is there as a whole or not at all; more are sent as several batches, one after the other.
        With `job_id=X` the ids are X.0, X.1, ..., and the items must fit one batch."""
        params = _job_params(priority, delay_s, max_attempts, expires_s)
        bodies = self._bodies(items, serializer)
        return await self._enqueue_batch(
            prefix, bodies, [None] * len(bodies), params, token=token, timeout_s=timeout_s, job_id=job_id
        )

    async def _enqueue_batch(
        self,
        prefix: str,
        bodies: Sequence[bytes],
        wfs: Sequence[str | None],
        params: Params,
        *,
        token: Token,
        timeout_s: float,
        job_id: str | None = None,
    ) -> list[str]:
        queue, attachment = queue_prefix(prefix), self._attachment(token)
        caller, enqueuer = self._opened()
        parts = list(into_parts(bodies, wfs))
        if job_id is not None and len(parts) > 1:
            raise ValueError(f"job_id= needs items that fit one batch of {MAX_BATCH}, got {len(bodies)}")

        def send(some: Sequence[bytes], flows: Sequence[str | None]) -> Coroutine[Any, Any, list[str]]:
            base = job_id or new_job_id()
            batch = Batch(queue, params, attachment, some, flows, base, always_many=True)
            return enqueuer.deliver(batch, timeout_s)

        def at_once() -> int:
            return _UNDER_WAY if caller.known_dialect(queue) == "extended" else 1

        return await in_order([partial(send, some, flows) for some, flows in parts], at_once)

    async def chain(
        self,
        prefixes: Sequence[str],
        data: Any,
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> str:
        """Runs queues in sequence, each fed what the one before it returned. Returns the first job's id."""
        if not prefixes:
            raise ValueError("chain() needs at least one queue")
        queues = [queue_prefix(prefix) for prefix in prefixes]
        body = self._body(data, serializer)
        params = _job_params(priority)
        return await self._enqueue_body(
            queues[0], body, params, token=token, timeout_s=timeout_s, wf=chain_wf(queues)
        )

    async def group(
        self,
        prefix: str,
        items: Iterable[Any],
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> list[str]:
        """Puts a batch of jobs on one queue and returns their ids."""
        return await self.enqueue_many(
            prefix, items, priority=priority, serializer=serializer, token=token, timeout_s=timeout_s
        )

    async def chord(
        self,
        prefix: str,
        items: Iterable[Any],
        callback: tuple[str, Any],
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        on_failure: OnFailure | None = None,
    ) -> list[str]:
        """A group, and once all of its jobs have succeeded a job on `callback`'s queue whose body is
        `{"results": [...in order...], "input": callback's data}`. Returns the members' ids.

        `on_failure`: what a dead member does to the chord: it "wait"s (also the default), the chord "fail"s,
        or it "collect"s the error in the member's place.
        """
        callback_queue = queue_prefix(callback[0])
        bodies = self._bodies(items, serializer)
        callback_body = self._body(callback[1], serializer)
        chord_id = secrets.token_hex(16)
        params = _job_params(priority)
        if not bodies:
            await self._fire_empty(callback_queue, callback[1], chord_id, serializer, token, timeout_s)
            return []
        wfs = chord_wfs(chord_id, len(bodies), (callback_queue, callback_body), on_failure)
        return await self._enqueue_batch(prefix, bodies, wfs, params, token=token, timeout_s=timeout_s)

    async def _fire_empty(
        self,
        queue: str,
        data: Any,
        chord_id: str,
        serializer: Serializes | None,
        token: Token,
        timeout_s: float,
    ) -> None:
        body = {"results": [], "input": data}
        await self.enqueue(
            queue, body, job_id=f"{chord_id}.cb", serializer=serializer, token=token, timeout_s=timeout_s
        )

    # --- parts -------------------------------------------------------------------------------------

    def _opened(self) -> tuple[Caller, Enqueuer]:
        if self._caller is None or self._enqueuer is None:
            raise RuntimeError("the client is not open: use `async with Client() as client`")
        return self._caller, self._enqueuer

    def _body(self, data: Any, serializer: Serializes | None) -> bytes:
        body = (serializer or self._serializer).serialize(data)
        if isinstance(body, str):
            body = body.encode()
        if len(body) > _MAX_BODY_BYTES:
            raise _too_large(len(body))
        return body

    def _bodies(self, items: Iterable[Any], serializer: Serializes | None) -> list[bytes]:
        bodies = to_bodies(serializer or self._serializer, items)
        longest = max(map(len, bodies), default=0)
        if longest > _MAX_BODY_BYTES:
            raise _too_large(longest)
        return bodies

    def _decoded(self, text: str | None, serializer: Serializes | None) -> Any:
        return from_base64(serializer or self._serializer, text)

    def _attachment(self, token: Token) -> bytes | None:
        chosen = self._token if token is None else token
        job = self._current_job()
        if chosen is None and job is None:
            return None
        return Envelope(
            token=chosen.decode() if isinstance(chosen, bytes) else chosen,
            correlation_id=None if job is None else job.correlation_id,
            traceparent=None if job is None else job.traceparent,
        ).encode()


def _too_large(size: int) -> PayloadTooLargeError:
    """Said before it is sent, so that it cannot spoil the batch it would travel in."""
    return PayloadTooLargeError(
        f"the job's body has {size} bytes, the limit is {_MAX_BODY_BYTES}: keep the data elsewhere and enqueue a "
        "reference to it"
    )


@lru_cache(maxsize=256, typed=True)  # most callers say the same each time
def _job_params(
    priority: int,
    delay_s: float = 0.0,
    max_attempts: int | None = None,
    expires_s: float | None = None,
    unique_key: str | None = None,
    schedule: str | None = None,
    tick: str | None = None,
) -> Params:
    """What differs from the owner's defaults."""
    if delay_s < 0:
        raise BadRequestError(f"delay_s must not be negative, got {delay_s!r}")
    named: dict[str, object] = {
        "priority": priority or None,
        "delay": delay_s or None,
        "max_attempts": max_attempts,
        "expires": expires_s,
        "unique_key": unique_key,
        "schedule": schedule,
        "tick": tick,
    }
    return tuple([(name, value) for name, value in named.items() if value is not None])


def _no_job() -> None:
    return None
