"""A medium that fails: callers are told, nothing acknowledged is lost, and the owner goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from istos_worker.client import Client
from istos_worker.errors import StorageUnavailableError
from istos_worker.storage.memory import MemoryStorage
from istos_worker.storage.protocol import QueueMedium, Row, WriteBatch
from istos_worker.wire.keys import worker_key
from tests.fixtures.live import Live, Raw, live_node, until


class Disk:
    """A storage that can be made to fail."""

    def __init__(self) -> None:
        self._memory = MemoryStorage()
        self.is_full = False

    async def open_queue(self, name: str) -> QueueMedium:
        return _OnDisk(self, await self._memory.open_queue(name))

    async def aclose(self) -> None:
        await self._memory.aclose()


class _OnDisk:
    def __init__(self, disk: Disk, medium: QueueMedium) -> None:
        self._disk = disk
        self._medium = medium
        self.is_durable = True

    def _check(self) -> None:
        if self._disk.is_full:
            raise StorageUnavailableError("the disk is full")

    async def notes(self) -> dict[str, bytes]:
        self._check()
        return await self._medium.notes()

    async def rows(self) -> AsyncIterator[Sequence[Row]]:
        async for rows in self._medium.rows():
            yield rows

    async def commit(self, batch: WriteBatch) -> None:
        self._check()
        await self._medium.commit(batch)

    async def aclose(self) -> None:
        await self._medium.aclose()


@pytest.fixture
async def disk() -> Disk:
    return Disk()


@pytest.fixture
async def node(disk: Disk) -> AsyncIterator[Live]:
    async with live_node() as live:
        await live.own(storage=disk)
        yield live


async def works_again(client: Client) -> bool:
    try:
        await client.enqueue("jobs/a", "after", job_id="after")
    except StorageUnavailableError:
        return False
    return True


async def test_the_caller_is_told_and_the_owner_recovers(node: Live, disk: Disk) -> None:
    client = await node.client()
    await client.enqueue("jobs/a", "kept", job_id="kept")

    disk.is_full = True
    with pytest.raises(StorageUnavailableError, match="disk is full"):
        await client.enqueue("jobs/a", "lost", job_id="lost")
    disk.is_full = False

    async def recovered() -> bool:
        return await works_again(client)

    await until(recovered)
    states = {name: (await client.result("jobs/a", name))["state"] for name in ("kept", "lost", "after")}
    assert states == {"kept": "ready", "lost": "unknown", "after": "ready"}


async def test_a_waiting_claim_is_told_too(node: Live, disk: Disk) -> None:
    client = await node.client()
    raw = Raw(await node.connect())
    waiting = asyncio.create_task(raw("claim", n=1, wait=20, worker="w", seq=1))
    while (await raw("workers"))["workers"] == []:
        pass

    disk.is_full = True
    with pytest.raises(StorageUnavailableError):
        await client.enqueue("jobs/a", 1)

    disk.is_full = False
    assert (await waiting)["code"] == "storage_unavailable"


async def test_workers_that_come_meanwhile_are_known_afterwards(node: Live, disk: Disk) -> None:
    client = await node.client()
    session = await node.connect()
    worker = Raw(session)
    disk.is_full = True
    with pytest.raises(StorageUnavailableError):
        await client.enqueue("jobs/a", 1)
    token = session.declare_token(worker_key("jobs/a", "w"))
    await worker.bytes("stats")  # behind the token, on the same connection
    disk.is_full = False

    async def recovered() -> bool:
        return await works_again(client)

    async def is_known() -> bool:
        return any(one["worker"] == "w" and one["up"] for one in await client.workers("jobs/a"))

    await until(recovered)
    await worker("claim", n=1, worker="w", seq=1)
    await until(is_known)
    token.undeclare()
