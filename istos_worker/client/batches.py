"""Many jobs as batches: where they are split, and how many are on their way at a time. Knows sizes; sends nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from istos_worker.client.joining import BATCH_WEIGHT
from istos_worker.wire.limits import MAX_BATCH


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


def into_batches(
    bodies: Sequence[bytes], wfs: Sequence[str | None]
) -> list[tuple[list[bytes], list[str | None]]]:
    """Split where a batch has its most members or bytes (as base64, with room for workflows)."""
    batches: list[tuple[list[bytes], list[str | None]]] = []
    size = 0
    for body, wf in zip(bodies, wfs, strict=True):
        weight = len(body) + len(wf or "")
        if not batches or len(batches[-1][0]) >= MAX_BATCH or size + weight > BATCH_WEIGHT:
            batches.append(([], []))
            size = 0
        batches[-1][0].append(body)
        batches[-1][1].append(wf)
        size += weight
    return batches
