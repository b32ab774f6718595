"""Enqueues made in one turn of the event loop travel together. Knows ids and batches, not what jobs mean.

Every job has its id before it is sent, so a request that may or may not have arrived is simply sent again.
"""

from __future__ import annotations

import asyncio
import binascii
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from istos_worker.client.calls import Caller, Patience, Request, unreachable
from istos_worker.errors import IstosError
from istos_worker.wire.codec import decode_reply, encode_params
from istos_worker.wire.limits import MAX_BATCH, MAX_BATCH_BYTES

Params = tuple[tuple[str, object], ...]
BATCH_WEIGHT = MAX_BATCH_BYTES * 7 // 10
"""Bytes of bodies and workflows in one batch: in base64 they stay within the owner's limit."""


def new_job_id() -> str:
    return secrets.token_hex(16)


@dataclass(slots=True)
class _Bucket:
    """Jobs for one queue that share their parameters and their sender."""

    prefix: str
    params: Params
    attachment: bytes | None
    timeout_s: float
    bodies: list[bytes] = field(default_factory=list)
    wfs: list[str | None] = field(default_factory=list)
    futures: list[asyncio.Future[str]] = field(default_factory=list)
    size: int = 0


class Enqueuer:
    """Puts jobs on queues, whichever owner is there."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[str, Params, bytes | None, float], _Bucket] = {}
        self._flush_planned = False
        self._asked: set[asyncio.Future[bytes | None]] = set()
        self._sending: set[asyncio.Task[None]] = set()

    def join(
        self,
        prefix: str,
        body: bytes,
        params: Params,
        *,
        attachment: bytes | None,
        timeout_s: float,
        wf: str | None = None,
    ) -> asyncio.Future[str]:
        """The job's id, once the owner has it. The job travels with others of this turn of the loop."""
        key = (prefix, params, attachment, timeout_s)
        weight = len(body) + len(wf or "")
        bucket = self._open.get(key)
        if bucket is None or len(bucket.bodies) >= MAX_BATCH or bucket.size + weight > BATCH_WEIGHT:
            if bucket is not None:
                self._send(bucket)
            bucket = self._open[key] = _Bucket(prefix, params, attachment, timeout_s)
            if not self._flush_planned:
                self._flush_planned = True
                self._loop.call_soon(self._flush)
        future: asyncio.Future[str] = self._loop.create_future()
        bucket.bodies.append(body)
        bucket.wfs.append(wf)
        bucket.futures.append(future)
        bucket.size += weight
        return future

    def _flush(self) -> None:
        self._flush_planned = False
        buckets, self._open = self._open, {}
        for bucket in buckets.values():
            self._send(bucket)

    def _send(self, bucket: _Bucket) -> None:
        request = batch_request(
            bucket.prefix, bucket.bodies, bucket.params, new_job_id(), bucket.attachment, bucket.wfs
        )
        if self._caller.known_dialect(bucket.prefix) != "extended":
            self._in_background(bucket, request)
            return
        # The usual case needs no task of its own.
        try:
            asked = self._caller.ask(request, bucket.timeout_s)
        except Exception as refused:  # the session is closed, or Zenoh refuses the key: theirs to see
            _fail(bucket.futures, refused)
            return
        self._asked.add(asked)
        asked.add_done_callback(partial(self._on_first_reply, bucket, request))

    def _on_first_reply(self, bucket: _Bucket, request: Request, asked: asyncio.Future[bytes | None]) -> None:
        self._asked.discard(asked)
        failure = None if asked.cancelled() else asked.exception()
        raw = None if asked.cancelled() or failure is not None else asked.result()
        if raw is None and not isinstance(failure, TimeoutError):
            self._caller.forget(bucket.prefix)
            self._in_background(bucket, request)
            return
        try:
            if raw is None:
                patience = Patience(bucket.timeout_s)
                patience.heard_silence = True
                raise unreachable(bucket.prefix, patience)
            _resolve(bucket.futures, ids_of(decode_reply(raw)))
        except Exception as failed:
            _fail(bucket.futures, failed)

    def _in_background(self, bucket: _Bucket, request: Request) -> None:
        task = self._loop.create_task(self._send_slowly(bucket, request))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def aclose(self) -> None:
        """Returns when everything is delivered or given up."""
        self._flush()
        while self._sending or self._asked:
            under_way: list[asyncio.Future[Any]] = [*self._sending, *self._asked]
            await asyncio.wait(under_way)

    async def _send_slowly(self, bucket: _Bucket, request: Request) -> None:
        try:
            ids = await self.deliver(
                request,
                bucket.bodies,
                bucket.params,
                bucket.timeout_s,
                wfs=bucket.wfs,
                on_each=lambda index, job_id: _resolve(bucket.futures[index : index + 1], [job_id]),
            )
            _resolve(bucket.futures, ids)
        except asyncio.CancelledError:
            for future in bucket.futures:
                future.cancel()
            raise
        except Exception as failed:
            _fail(bucket.futures, failed)

    async def deliver(
        self,
        request: Request,
        bodies: Sequence[bytes],
        params: Params,
        timeout_s: float,
        *,
        wfs: Sequence[str | None],
        on_each: Callable[[int, str], None] | None = None,
    ) -> list[str]:
        """The ids, once an owner has the jobs. Raises OwnerUnreachable."""
        patience = Patience(timeout_s)
        while True:
            dialect = await self._caller.settled_dialect(request.prefix, patience)
            if dialect == "base":
                return await self._one_by_one(request, bodies, params, patience, wfs, on_each)
            try:
                raw = await self._caller.ask(request, patience.try_s)
            except TimeoutError:
                raw = None
                patience.heard_silence = True
            if raw is not None:
                return ids_of(decode_reply(raw))
            self._caller.forget(request.prefix)
            if not await patience.pause():
                raise unreachable(request.prefix, patience)

    async def _one_by_one(
        self,
        request: Request,
        bodies: Sequence[bytes],
        params: Params,
        patience: Patience,
        wfs: Sequence[str | None],
        on_each: Callable[[int, str], None] | None,
    ) -> list[str]:
        _refuse_extensions(request.prefix, params)
        base = tuple((name, value) for name, value in params if name in ("priority", "delay"))
        ids: list[str] = []
        for index, (body, wf) in enumerate(zip(bodies, wfs, strict=True)):
            named = base if wf is None else (*base, ("wf", wf))
            one = Request.of(
                request.prefix, "enqueue", dict(named), payload=body, attachment=request.attachment
            )
            reply = await self._caller.call_once(one, max(patience.timeout_s, patience.left_s))
            ids.append(str(reply["job_id"]))
            if on_each is not None:
                on_each(index, ids[-1])
        return ids


_DONE_WITHOUT = frozenset(("priority", "delay", "wf", "job_id", "schedule", "tick"))


def _refuse_extensions(prefix: str, params: Params) -> None:
    """What changes a job's meaning must not be dropped in silence; an id only makes retries safe."""
    for name, _ in params:
        if name not in _DONE_WITHOUT:
            raise IstosError(
                f"the owner of {prefix!r} is an istos 0.3 node: it cannot take {name!r}", code="bad_request"
            )


def batch_request(
    prefix: str,
    bodies: Sequence[bytes],
    params: Params,
    job_id: str,
    attachment: bytes | None,
    wfs: Sequence[str | None],
    *,
    always_many: bool = False,
) -> Request:
    """One job as `enqueue`, several as `enqueue_many`; as `enqueue_many` in any case with `always_many`."""
    named: dict[str, object] = dict(params)
    named.setdefault("job_id", job_id)
    if len(bodies) == 1 and not always_many:
        if wfs[0] is not None:
            named["wf"] = wfs[0]
        return Request(prefix, "enqueue", encode_params(named), bodies[0], attachment)
    named["encoding"] = "base64"
    encoded = [binascii.b2a_base64(body, newline=False).decode() for body in bodies]
    payload: Any = encoded if not any(wfs) else {"bodies": encoded, "wfs": list(wfs)}
    return Request(prefix, "enqueue_many", encode_params(named), orjson.dumps(payload), attachment)


def ids_of(reply: dict[str, Any]) -> list[str]:
    ids = reply.get("job_ids")
    return [str(job_id) for job_id in ids] if isinstance(ids, list) else [str(reply["job_id"])]


def _resolve(futures: Sequence[asyncio.Future[str]], ids: Sequence[str]) -> None:
    if len(ids) != len(futures):
        raise IstosError(f"the owner answered with {len(ids)} ids for {len(futures)} jobs")
    for future, job_id in zip(futures, ids, strict=True):
        if not future.done():
            future.set_result(job_id)


def _fail(futures: Sequence[asyncio.Future[str]], failure: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(failure)
