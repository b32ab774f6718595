"""Many jobs as batches: what one carries, where they are split, and how many are on their way at a time. Sends
nothing."""

from __future__ import annotations

import asyncio
import binascii
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from istos_worker.client.calls import Request
from istos_worker.wire.bundle import BASE64, SIZED, joined, sizes_of
from istos_worker.wire.codec import encode_params
from istos_worker.wire.limits import MAX_BATCH, MAX_BATCH_BYTES

Params = tuple[tuple[str, object], ...]
BATCH_WEIGHT = MAX_BATCH_BYTES * 7 // 10
"""Bytes of bodies and workflows in one batch: in base64 they stay within the owner's limit."""


def new_job_id() -> str:
    return os.urandom(16).hex()


@dataclass(slots=True)
class Batch:
    """Jobs for one queue that share their parameters and their sender. The id makes it safe to send it again."""

    prefix: str
    params: Params
    attachment: bytes | None
    bodies: Sequence[bytes]
    wfs: Sequence[str | None]
    job_id: str = field(default_factory=new_job_id)
    always_many: bool = False
    """One job too travels as `enqueue_many`, and is X.0."""

    def request(self, *, sized: bool) -> Request:
        """One job as `enqueue`, several as `enqueue_many`; `sized`, where the owner takes that encoding."""
        named: dict[str, object] = {**dict(self.params), "job_id": self.job_id}
        if len(self.bodies) == 1 and not self.always_many:
            if self.wfs[0] is not None:
                named["wf"] = self.wfs[0]
            return Request(self.prefix, "enqueue", encode_params(named), self.bodies[0], self.attachment)
        named["encoding"] = SIZED if sized else BASE64
        payload = joined(self._with_wfs(sizes_of(self.bodies)), self.bodies) if sized else self._as_base64()
        return Request(self.prefix, "enqueue_many", encode_params(named), payload, self.attachment)

    def _as_base64(self) -> bytes:
        encoded = [binascii.b2a_base64(body, newline=False).decode() for body in self.bodies]
        return orjson.dumps(self._with_wfs(encoded))

    def _with_wfs(self, bodies: list[Any]) -> object:
        return {"bodies": bodies, "wfs": self.wfs} if any(self.wfs) else bodies


async def in_order(
    sends: Sequence[Callable[[], Coroutine[Any, Any, list[str]]]], at_once: Callable[[], int]
) -> list[str]:
    """Everything that was sent, in order. The first goes alone, since it finds the owner; then a few are on
    their way at a time, and arrive in the order in which they were sent."""
    ids: list[str] = await sends[0]() if sends else []
    under_way: deque[asyncio.Task[list[str]]] = deque()
    try:
        for send in sends[1:]:
            under_way.append(asyncio.create_task(send()))
            if len(under_way) >= at_once():
                ids += await under_way.popleft()
        while under_way:
            ids += await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return ids


def into_parts(
    bodies: Sequence[bytes], wfs: Sequence[str | None]
) -> Iterator[tuple[Sequence[bytes], Sequence[str | None]]]:
    """Split where a batch has its most members or bytes (as base64, with room for workflows)."""
    if len(bodies) <= MAX_BATCH and _weight(bodies, wfs) <= BATCH_WEIGHT:
        if bodies:
            yield bodies, wfs
        return
    start = size = 0
    for index, body in enumerate(bodies):
        weight = len(body) + len(wfs[index] or "")
        if index > start and (index - start >= MAX_BATCH or size + weight > BATCH_WEIGHT):
            yield bodies[start:index], wfs[start:index]
            start, size = index, 0
        size += weight
    yield bodies[start:], wfs[start:]


def _weight(bodies: Sequence[bytes], wfs: Sequence[str | None]) -> int:
    return sum(map(len, bodies)) + sum(len(wf) for wf in wfs if wf)
