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
from istos_worker.wire.local_connection import LocalConnection
from istos_worker.wire.local_frames import GREETING, SIZE_BYTES, Question, decode_question, encode_answer
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


class _Owner(asyncio.Transport):
    """An owner, as far as a consumer asks anything of it, at the other end of a connection that is no socket. Shuts
    the gate at the end."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._given = 0
        self._settled = 0
        self._connection = LocalConnection("rehearsal", self)
        self._connection.connection_made(self)
        self._connection.data_received(GREETING)

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        return self._connection.ask(key, params, payload, attachment, timeout_s)

    def lose(self, connection: LocalConnection, prefix: str) -> None:
        """It never is."""

    def broken(self, connection: LocalConnection) -> None:
        """It never is."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        question = decode_question(bytes(data[SIZE_BYTES:]))
        self._connection.data_received(encode_answer(question.number, self._answer(question)))

    def _answer(self, question: Question) -> bytes:
        wanted = int(decode_params(question.params).get("n", 0))
        outcomes = len(orjson.loads(question.payload)["outcomes"]) if question.payload else 0
        jobs = [_wire(self._given + number) for number in range(min(wanted, _AT_ONCE, JOBS - self._given))]
        self._given += len(jobs)
        self._settled += outcomes
        self._gate.draining = self._settled == JOBS  # with the reply, so that no further claim is parked
        return orjson.dumps({"jobs": jobs, "outcomes": [{"ok": True}] * outcomes})


def _wire(number: int) -> dict[str, object]:
    return {"job_id": f"rehearsal-{number}", "attempt": 1, "fence": number + 1, "data": "e30="}
