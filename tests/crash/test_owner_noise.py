"""Random and malformed queries against an owner process, and bytes that are no Zenoh at all against its port: each
query is answered, memory stays flat, the owner serves on.

ISTOS_FUZZ_QUERIES says how many (a few thousand in the suite).
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.live import Raw, free_endpoint
from tests.fixtures.noise import Noisy
from tests.fixtures.owners import Owners
from tests.fixtures.programs import Program

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("way")]

QUERIES = int(os.environ.get("ISTOS_FUZZ_QUERIES", "4000"))
AT_ONCE = 100
QUEUE = "jobs/a"
ALLOWED_GROWTH = 1.25


async def ask_noise(session: Session, noisy: Noisy, count: int) -> dict[str, int]:
    """What kinds of answers there were."""
    kinds: dict[str, int] = {}
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            query = noisy.query()
            raw = await session.ask(
                query.key, query.params, payload=query.payload, attachment=query.attachment, timeout_s=30
            )
        assert raw is not None, f"{query.key}?{query.params[:200]} was not answered"
        kind = str(orjson.loads(raw).get("code", "ok"))
        assert kind in ("ok", "bad_request", "payload_too_large", "conflict"), f"{query}: {raw[:200]!r}"
        kinds[kind] = kinds.get(kind, 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
    return kinds


async def clear(raw: Raw) -> None:
    """Takes away what queries may rightly leave behind: jobs."""
    await raw("resume")
    while jobs := (await raw("claim", n=1000, worker="clearer"))["jobs"]:
        named = [{"job_id": job["job_id"], "fence": job["fence"]} for job in jobs]
        outcomes = [{"verb": "ack", "advance": True, **one} for one in named]
        await raw("settle", orjson.dumps({"outcomes": outcomes}))
    await raw("purge", all=1)


async def talk_nonsense(endpoint: str, rng: random.Random) -> None:
    """To the port itself, as scanners and strayed clients do."""
    host, port = endpoint.removeprefix("tcp/").split(":")
    for length in (0, 1, 2, 3, 20, 70_000):
        with socket.create_connection((host, int(port))) as stray:
            stray.sendall(rng.randbytes(length))
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff" * 10, b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection((host, int(port))) as stray:
            stray.sendall(greeting)


async def test_noise_is_answered_and_leaves_no_trace(owner: Owners, tmp_path: Path) -> None:
    seed = int(os.environ.get("ISTOS_FUZZ_SEED", random.randrange(2**32)))
    endpoint = free_endpoint()
    arguments = ("--listen", endpoint, "--scouting", "off", "--result-ttl", "1s", "--lease", "1s")
    serving = owner.start(QUEUE, storage=f"sqlite:///{tmp_path}/queues.db", arguments=arguments)
    serving.says("owner ready")
    settings = ZenohSettings(connect=(endpoint,), namespace=owner.network.namespace)
    session = await Session.open(settings)
    noisy = Noisy(QUEUE, random.Random(seed))
    try:
        raw = Raw(session, QUEUE)
        sizes: list[int] = []
        kinds: dict[str, int] = {}
        for _ in range(8):
            for kind, count in (await ask_noise(session, noisy, QUERIES // 8)).items():
                kinds[kind] = kinds.get(kind, 0) + count
            await talk_nonsense(endpoint, random.Random(seed))
            await clear(raw)
            sizes.append(psutil.Process(serving.pid).memory_info().rss)
        await serves_on(raw)
    except BaseException as failed:
        failed.add_note(f"ISTOS_FUZZ_SEED={seed}; the owner's log:\n{serving.log[-3000:]}")
        raise
    finally:
        await session.aclose()
    assert_calm(serving)
    assert kinds["ok"] > QUERIES // 10
    assert sizes[-1] < sizes[1] * ALLOWED_GROWTH, f"memory grew: {sizes}"
    print(f"{QUERIES} queries, seed {seed}: {kinds}; MiB after each eighth: {[size >> 20 for size in sizes]}")


async def serves_on(raw: Raw) -> None:
    await raw.enqueue(b'"healthy"', priority=2**30, job_id="last")
    job: dict[str, Any] = await raw("claim")
    assert job["job_id"] == "last"
    assert await raw("ack", job_id="last", fence=job["fence"]) == {"ok": True}


def assert_calm(serving: Program) -> None:
    assert serving.process.poll() is None
    assert "Traceback" not in serving.log, serving.log[-5000:]
    assert serving.stop() == 0
