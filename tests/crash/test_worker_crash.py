"""Workers and owners that are killed, stopped and blocked: real processes, the worker class without a fleet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from istos_worker.client import Client
from istos_worker.wire.settings import ZenohSettings

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("way")]

ROOT = Path(__file__).parent.parent.parent
QUEUE = "jobs/crash"
LEASE_S = 1.0

OWNER = f"""
import asyncio, sys
from istos_worker.queue.role import QueueRole
from istos_worker.queue.store import QueueStore
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings

async def main(endpoint, storage):
    session = await Session.open(
        ZenohSettings(mode="router", listen=(endpoint,), scouting="off", lease_s={LEASE_S}))
    store = QueueStore("{QUEUE}", storage, keep_results=True)
    role = QueueRole("{QUEUE}", store, lease_s={LEASE_S})
    await role.bind(session, asyncio.get_running_loop())
    print('{{"said": "ready"}}', flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""

WORKER = f"""
import asyncio, ctypes, json, os, sys
from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings
from istos_worker.worker import Handler, Handlers, Worker, WorkerSettings

def say(said, job):
    print(json.dumps({{"said": said, "job": job, "pid": os.getpid()}}), flush=True)

async def work(job, ctx):
    say("start", job)
    match job:
        case ["hang at first"] if ctx.attempt == 1:
            await asyncio.Event().wait()
        case ["sleep", seconds]:
            await asyncio.sleep(seconds)
        case ["hold the interpreter", seconds]:
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL keeps the GIL
    say("end", job)
    return os.getpid()

async def main(endpoint, concurrency):
    session = await Session.open(
        ZenohSettings(mode="client", connect=(endpoint,), scouting="off", lease_s={LEASE_S},
                      extra={{"connect": {{"retry": {{"period_init_ms": 50, "period_max_ms": 200}}}}}}))
    settings = WorkerSettings(prefix="{QUEUE}", concurrency=int(concurrency))
    async with Worker(settings, session=session, handlers=Handlers(plain=Handler.plain(work))):
        say("up", None)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class Program:
    """A process that says what it does, one JSON object a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self.heard = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))
            self.heard.set()

    async def until(self, condition: Callable[[], Any], timeout_s: float = 15.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.heard.clear()
                await self.heard.wait()

    async def has_said(self, said: str, times: int = 1) -> None:
        await self.until(lambda: len(self.jobs(said)) >= times)

    def jobs(self, said: str) -> list[Any]:
        return [each.get("job") for each in self.said if each["said"] == said]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


class Mesh:
    """An owner, its workers and a client, on a port of their own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        self._storage = f"sqlite:///{folder}/queue.db"
        self._programs: list[Program] = []
        self._clients: list[Client] = []

    async def _start(self, code: str, *arguments: str) -> Program:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, self.endpoint, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        program = Program(process)
        self._programs.append(program)
        return program

    async def owner(self) -> Program:
        owner = await self._start(OWNER, self._storage)
        await owner.has_said("ready")
        return owner

    async def worker(self, concurrency: int = 4) -> Program:
        worker = await self._start(WORKER, str(concurrency))
        await worker.has_said("up")
        return worker

    async def client(self) -> Client:
        config = ZenohSettings(mode="client", connect=(self.endpoint,), scouting="off")
        client = Client(config)
        await client.open()
        self._clients.append(client)
        return client

    async def end(self) -> None:
        for client in self._clients:
            await client.aclose()
        for program in self._programs:
            await program.kill()


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    started = Mesh(tmp_path)
    try:
        yield started
    finally:
        await started.end()


async def test_jobs_of_a_killed_worker_start_again_elsewhere(mesh: Mesh) -> None:
    await mesh.owner()
    client = await mesh.client()
    victim = await mesh.worker(concurrency=4)
    jobs = await client.enqueue_many(QUEUE, [["hang at first"]] * 4)
    await victim.has_said("start", 4)
    other = await mesh.worker(concurrency=4)

    await victim.kill()

    await other.has_said("end", 4)
    results = [await client.result(QUEUE, job, wait_s=5) for job in jobs]
    assert results == [{"state": "done", "result": other.pid}] * 4


async def test_the_second_holders_result_stands_when_a_frozen_worker_wakes_up(mesh: Mesh) -> None:
    await mesh.owner()
    client = await mesh.client()
    frozen = await mesh.worker(concurrency=1)
    job = await client.enqueue(QUEUE, ["sleep", 0.1])
    await frozen.has_said("start")
    frozen.signal(signal.SIGSTOP)
    other = await mesh.worker(concurrency=1)
    await other.has_said("end")
    stands = await client.result(QUEUE, job, wait_s=5)

    frozen.signal(signal.SIGCONT)
    async with asyncio.timeout(15):
        while not frozen.jobs("end"):  # it is back, and has said what it had to say
            later = await client.enqueue(QUEUE, ["now"])
            assert (await client.result(QUEUE, later, wait_s=10))["state"] == "done"

    assert stands == {"state": "done", "result": other.pid}
    assert await client.result(QUEUE, job) == stands


async def test_a_handler_that_holds_the_interpreter_for_three_leases_runs_once(mesh: Mesh) -> None:
    await mesh.owner()
    client = await mesh.client()
    blocked = await mesh.worker(concurrency=1)
    job = await client.enqueue(QUEUE, ["hold the interpreter", 3 * LEASE_S])
    await blocked.has_said("start")
    other = await mesh.worker(concurrency=1)

    result = await client.result(QUEUE, job, wait_s=10)

    assert result == {"state": "done", "result": blocked.pid}
    assert other.jobs("start") == []


async def test_nothing_is_lost_when_the_owner_is_killed_and_restarted_under_load(mesh: Mesh) -> None:
    owner = await mesh.owner()
    client = await mesh.client()
    workers = [await mesh.worker(concurrency=4), await mesh.worker(concurrency=4)]
    jobs = await client.enqueue_many(QUEUE, [["sleep", 0.02] for _ in range(400)])

    def ended() -> int:
        return sum(len(worker.jobs("end")) for worker in workers)

    for _ in range(3):
        before = ended()
        async with asyncio.timeout(10):
            while ended() < before + 20:
                for worker in workers:
                    worker.heard.clear()
                heard = [asyncio.ensure_future(worker.heard.wait()) for worker in workers]
                await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
                for one in heard:
                    one.cancel()
        await owner.kill()
        owner = await mesh.owner()

    results = [await client.result(QUEUE, job, wait_s=20) for job in jobs]
    assert {result["state"] for result in results} == {"done"}
