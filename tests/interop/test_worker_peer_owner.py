"""Our worker drains queues whose owner is the public package istos 0.3.4."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from istos import Istos
from istos.communication.config import IstosZenohConfig

from istos_worker.context import JobContext
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings
from istos_worker.worker import Discard, Handler, Handlers, Worker, WorkerSettings

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:.*neither authentication"),  # loopback, and for a moment
]


def free_endpoint() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{taken.getsockname()[1]}"


class PeerNode:
    """An istos 0.3 program that owns queues, and our workers beside it."""

    def __init__(self, app: Istos, session: Session, workers: AsyncExitStack) -> None:
        self.app = app
        self._session = session
        self._workers = workers

    async def work(self, prefix: str, handler: Callable[..., Any], *, concurrency: int = 4) -> Worker:
        settings = WorkerSettings(prefix=prefix, concurrency=concurrency, poll_interval_s=0.2)
        worker = Worker(settings, session=self._session, handlers=Handlers(plain=Handler.plain(handler)))
        return await self._workers.enter_async_context(worker)

    async def ended(self, prefix: str, *job_ids: str) -> list[Any]:
        """The results, once all jobs are done or dead."""
        found = []
        async with asyncio.timeout(20):
            for job_id in job_ids:
                found.append(await self._ended(prefix, job_id))
        return found

    async def _ended(self, prefix: str, job_id: str) -> Any:
        while True:  # this kind of owner can only be polled
            reply = await self.app.result(prefix, job_id)
            if reply["state"] in ("done", "dead"):
                return reply["result"]
            await asyncio.sleep(0.01)


@asynccontextmanager
async def peer(*prefixes: str, **queue: Any) -> AsyncIterator[PeerNode]:
    endpoint = free_endpoint()
    app = Istos(
        config=IstosZenohConfig(mode="router", listen_endpoints=[endpoint], multicast_scouting=False),
        enable_health=False,
        enable_metrics=False,
        enable_discovery=False,
        configure_logging=False,
    )
    for prefix in prefixes:
        app.queue(prefix, retry_backoff_s=0.01, keep_results=True, **queue)
    async with app.serving(), AsyncExitStack() as stack:
        session = await Session.open(ZenohSettings(mode="client", connect=(endpoint,), scouting="off"))
        stack.push_async_callback(session.aclose)
        yield PeerNode(app, session, stack)


async def test_fifty_jobs_with_retries_are_drained_from_a_peer_owner() -> None:
    attempts: dict[int, int] = {}

    async def work(job: int, ctx: JobContext) -> int:
        attempts[job] = ctx.attempt
        if job % 5 == 0 and not ctx.is_retry:
            raise ValueError(f"not yet: {job}")
        if ctx.is_retry:
            assert ctx.last_error == f"ValueError: not yet: {job}"
        return job * job

    async with peer("jobs/square") as node:
        worker = await node.work("jobs/square", work)
        jobs = await node.app.group("jobs/square", list(range(50)))
        results = await node.ended("jobs/square", *jobs)

        assert results == [n * n for n in range(50)]
        assert attempts == {n: 2 if n % 5 == 0 else 1 for n in range(50)}
        assert worker.statistics.owner == "peer 0.3"
        assert worker.statistics.connected


async def test_a_chain_goes_through_three_queues_of_a_peer_owner() -> None:
    ends: asyncio.Queue[Any] = asyncio.Queue()

    async def fetch(job: str) -> dict[str, str]:
        return {"page": job}

    def parse(job: dict[str, str]) -> list[str]:
        return job["page"].split()

    async def store(job: list[str]) -> None:
        ends.put_nowait(job)

    async with peer("jobs/fetch", "jobs/parse", "jobs/store") as node:
        await node.work("jobs/fetch", fetch)
        await node.work("jobs/parse", parse)
        await node.work("jobs/store", store)
        await node.app.chain(["jobs/fetch", "jobs/parse", "jobs/store"], "a b c")

        async with asyncio.timeout(10):
            assert await ends.get() == ["a", "b", "c"]


async def test_a_chord_of_a_peer_owner_calls_back_once_with_results_in_order() -> None:
    ends: asyncio.Queue[Any] = asyncio.Queue()

    async def shard(job: int, ctx: JobContext) -> int:
        if job == 3 and not ctx.is_retry:
            raise ValueError("not yet")
        return job * 10

    async def reduce(job: Any) -> None:
        ends.put_nowait(job)

    async with peer("jobs/shard", "jobs/reduce") as node:
        await node.work("jobs/shard", shard)
        await node.work("jobs/reduce", reduce)
        await node.app.chord("jobs/shard", [1, 2, 3, 4], callback=("jobs/reduce", {"for": "m"}))

        async with asyncio.timeout(10):
            assert await ends.get() == {"results": [10, 20, 30, 40], "input": {"for": "m"}}
        assert ends.empty()


async def test_failures_end_in_the_peers_dead_letters_with_their_reason() -> None:
    async def fail(job: str) -> None:
        raise Discard("no such thing") if job == "discard" else ValueError("boom")

    async with peer("jobs/fail", max_attempts=2) as node:
        await node.work("jobs/fail", fail)
        jobs = await node.app.group("jobs/fail", ["discard", "raise"])
        await node.ended("jobs/fail", *jobs)
        dead = await node.app.dead_letters("jobs/fail")

    assert {each["data"]: each["last_error"] for each in dead} == {
        "discard": "no such thing",
        "raise": "ValueError: boom",
    }


async def test_a_drain_lets_running_jobs_of_a_peer_owner_finish() -> None:
    started = asyncio.Event()

    async def work(job: Any, ctx: JobContext) -> str:
        started.set()
        while not ctx.draining:  # noqa: ASYNC110 - what a handler does
            await asyncio.sleep(0.005)
        return "finished"

    async with peer("jobs/slow") as node:
        worker = await node.work("jobs/slow", work, concurrency=1)
        first, second = await node.app.group("jobs/slow", [1, 2])
        await started.wait()
        await worker.drain(10)

        assert await node.app.result("jobs/slow", first) == {"state": "done", "result": "finished"}
        assert (await node.app.result("jobs/slow", second))["state"] == "ready"
