"""A worker's part, played once in the zygote: without network, application or threads, and with an owner who has a
few jobs for nobody. Knows workers; not whose zygote it is.

What Python writes down when code first runs (specialised instructions, caches of attributes) is written here, once,
instead of in every worker, on pages that they would otherwise share (docs/performance.md).
"""

from __future__ import annotations

import asyncio

import orjson

from istos_worker.serialization import JsonSerializer
from istos_worker.wire.codec import decode_params
from istos_worker.worker.consumer import Consumer
from istos_worker.worker.handlers import Handler, Handlers
from istos_worker.worker.settings import WorkerHooks, WorkerSettings
from istos_worker.worker.statistics import Statistics
from istos_worker.worker.workplace import Gate

_AT_ONCE = 8
JOBS = 12 * _AT_ONCE
"""Python 3.11 specialises what has run eight times: what runs once an exchange too, not only what runs once a job."""
_WITHIN_S = 1.0
"""The longest that it may hold up a fleet's start."""


def rehearse() -> int:
    """The number of jobs done. Raises TimeoutError."""
    # uvloop keeps its descriptors until it is collected; a Runner cancels what a timeout leaves.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(_play())


async def _play() -> int:
    gate, statistics = Gate(), Statistics(slots=_AT_ONCE)
    consumer = Consumer(
        WorkerSettings(prefix="rehearsal", concurrency=_AT_ONCE),
        session=_Owner(gate),
        handlers=Handlers(plain=Handler.plain(_job)),
        serializer=JsonSerializer(),
        statistics=statistics,
        hooks=WorkerHooks(),
        gate=gate,
    )
    try:
        async with asyncio.timeout(_WITHIN_S):
            await consumer.run()
    finally:
        consumer.slots.hand_back()
        consumer.close()
    return statistics.done


async def _job(body: object) -> None:
    return None


class _Owner:
    """An owner, as far as a consumer asks anything of it. Shuts the gate at the end."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._given = 0
        self._settled = 0

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        asked: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        wanted = int(decode_params(params).get("n", 0))
        outcomes = 0 if payload is None else len(orjson.loads(payload)["outcomes"])
        jobs = [_wire(self._given + number) for number in range(min(wanted, _AT_ONCE, JOBS - self._given))]
        self._given += len(jobs)
        self._settled += outcomes
        self._gate.draining = self._settled == JOBS  # with the reply, so that no further claim is parked
        asked.set_result(orjson.dumps({"jobs": jobs, "outcomes": [{"ok": True}] * outcomes}))
        return asked


def _wire(number: int) -> dict[str, object]:
    return {"job_id": f"rehearsal-{number}", "attempt": 1, "fence": number + 1, "data": "e30="}
