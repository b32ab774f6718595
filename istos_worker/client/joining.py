"""Enqueues made in one turn of the event loop travel together. Knows ids and batches, not what jobs mean.

Every job has its id before it is sent, so a request that may or may not have arrived is simply sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from istos_worker.client.batches import BATCH_WEIGHT, Batch, Params
from istos_worker.client.calls import Caller, Patience, Request, first_try_s
from istos_worker.errors import IstosError
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.limits import MAX_BATCH


class _Bucket:
    """A batch that still fills, and who waits for it."""

    __slots__ = ("batch", "bodies", "futures", "size", "timeout_s", "wfs")

    def __init__(self, prefix: str, params: Params, attachment: bytes | None, timeout_s: float) -> None:
        self.bodies: list[bytes] = []
        self.wfs: list[str | None] = []
        self.batch = Batch(prefix, params, attachment, self.bodies, self.wfs)
        self.timeout_s = timeout_s
        self.futures: list[asyncio.Future[str]] = []
        self.size = 0


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
        batch, caller = bucket.batch, self._caller
        if caller.known_dialect(batch.prefix) != "extended":
            self._in_background(bucket)
            return
        # The usual case needs no task of its own.
        try:
            request = batch.request(sized=caller.takes_sized(batch.prefix))
            asked = caller.ask(request, first_try_s(bucket.timeout_s))
        except Exception as refused:  # the session is closed, or Zenoh refuses the key: theirs to see
            _fail(bucket.futures, refused)
            return
        self._asked.add(asked)
        asked.add_done_callback(partial(self._on_first_reply, bucket))

    def _on_first_reply(self, bucket: _Bucket, asked: asyncio.Future[bytes | None]) -> None:
        self._asked.discard(asked)
        failure = None if asked.cancelled() else asked.exception()
        raw = None if asked.cancelled() or failure is not None else asked.result()
        if raw is None:
            self._caller.forget(bucket.batch.prefix)
            is_silent = isinstance(failure, TimeoutError)
            self._in_background(bucket, silent_s=first_try_s(bucket.timeout_s) if is_silent else 0.0)
            return
        try:
            _resolve(bucket.futures, ids_of(decode_reply(raw)))
        except Exception as failed:
            _fail(bucket.futures, failed)

    def _in_background(self, bucket: _Bucket, *, silent_s: float = 0.0) -> None:
        task = self._loop.create_task(self._send_slowly(bucket, silent_s))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def aclose(self) -> None:
        """Returns when everything is delivered or given up."""
        self._flush()
        while self._sending or self._asked:
            under_way: list[asyncio.Future[Any]] = [*self._sending, *self._asked]
            await asyncio.wait(under_way)

    async def _send_slowly(self, bucket: _Bucket, silent_s: float) -> None:
        try:
            ids = await self.deliver(
                bucket.batch,
                bucket.timeout_s,
                silent_s=silent_s,
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
        batch: Batch,
        timeout_s: float,
        *,
        silent_s: float = 0.0,
        on_each: Callable[[int, str], None] | None = None,
    ) -> list[str]:
        """The ids, once an owner has the jobs. Raises OwnerUnreachable. `silent_s`: see Patience."""
        caller, prefix = self._caller, batch.prefix
        patience = Patience(timeout_s, silent_s=silent_s)
        if silent_s >= timeout_s > 0:
            raise patience.exhausted(prefix)
        while True:
            dialect = await caller.settled_dialect(prefix, patience, batch.attachment)
            if dialect == "base":
                return await self._one_by_one(batch, patience, on_each)
            try:
                raw = await caller.ask(batch.request(sized=caller.takes_sized(prefix)), patience.try_s)
            except TimeoutError:
                raw = None
                patience.heard_silence = True
            if raw is not None:
                return ids_of(decode_reply(raw))
            caller.forget(prefix)
            if not await patience.pause():
                raise patience.exhausted(prefix)

    async def deliver_one(self, batch: Batch, timeout_s: float, *, silent_s: float = 0.0) -> str:
        """As `deliver`, of a batch of one."""
        ids = await self.deliver(batch, timeout_s, silent_s=silent_s)
        return ids[0]

    async def _one_by_one(
        self, batch: Batch, patience: Patience, on_each: Callable[[int, str], None] | None
    ) -> list[str]:
        _refuse_extensions(batch.prefix, batch.params)
        base = tuple((name, value) for name, value in batch.params if name in ("priority", "delay"))
        ids: list[str] = []
        for index, (body, wf) in enumerate(zip(batch.bodies, batch.wfs, strict=True)):
            named = base if wf is None else (*base, ("wf", wf))
            one = Request.of(batch.prefix, "enqueue", dict(named), payload=body, attachment=batch.attachment)
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


def ids_of(reply: dict[str, Any]) -> list[str]:
    ids = reply.get("job_ids")
    return list(map(str, ids)) if isinstance(ids, list) else [str(reply["job_id"])]


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
