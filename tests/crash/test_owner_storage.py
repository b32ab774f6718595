"""An owner process whose file cannot be written for a while: callers are told, the log says which file and why, and
it goes on by itself with everything it had acknowledged."""

from __future__ import annotations

import resource
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from istos_worker.wire.session import Session
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.live import Raw, free_endpoint, until
from tests.fixtures.owners import Owners
from tests.fixtures.programs import LONG_S, Program

pytestmark = [pytest.mark.crash, pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")]

QUEUE = "jobs/a"


@contextmanager
def no_room(owner: Program, path: Path) -> Iterator[None]:
    """As a full disk, but that there is room for its log."""
    before = resource.prlimit(owner.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(owner.pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.prlimit(owner.pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def foreign_lock(owner: Program, path: Path) -> Iterator[None]:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    yield
    db.close()


class Node:
    def __init__(self, owner: Owners, path: Path) -> None:
        self.path = path
        self._owner = owner
        self._endpoint = free_endpoint()
        self._sessions: list[Session] = []

    async def start(self) -> tuple[Program, Raw]:
        arguments = ("--listen", self._endpoint, "--scouting", "off")
        serving = self._owner.start(QUEUE, storage=f"sqlite:///{self.path}", arguments=arguments)
        serving.says("owner ready")
        network = ZenohSettings(connect=(self._endpoint,), namespace=self._owner.network.namespace)
        session = await Session.open(network)
        self._sessions.append(session)
        return serving, Raw(session, QUEUE)

    async def aclose(self) -> None:
        for session in self._sessions:
            await session.aclose()


@pytest.fixture
async def node(owner: Owners, tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(owner, tmp_path / "queues.db")
    yield node
    await node.aclose()


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(no_room, "disk failed or is at its limit"), (foreign_lock, "locked by another process")],
)
async def test_trouble_with_the_file_is_told_and_overcome(
    node: Node, trouble: Callable[[Program, Path], AbstractContextManager[None]], reason: str
) -> None:
    serving, raw = await node.start()
    for number in range(20):
        await raw.enqueue(job_id=f"before-{number}")

    with trouble(serving, node.path):
        refused = await raw("enqueue", b"1", job_id="refused")
        assert refused["code"] == "storage_unavailable"
        assert reason in refused["message"]
        again = await raw("stats")
        assert again["code"] == "storage_unavailable"

    async def works() -> bool:
        return "code" not in await raw("enqueue", b"1", job_id="after")

    await until(works, within_s=LONG_S)
    assert serving.log.count("ERROR") == 1, serving.log
    assert f"sqlite file {node.path}: {refused['message'].split(': ', 1)[1]}" in serving.log
    serving.says("works again")
    serving.end()
    serving, raw = await node.start()
    states = [(await raw("result", job_id=f"before-{number}"))["state"] for number in range(20)]
    assert states == ["ready"] * 20
    assert (await raw("result", job_id="refused"))["state"] == "unknown"
    assert (await raw("result", job_id="after"))["state"] == "ready"


async def test_a_second_owner_of_the_file_is_refused(node: Node, owner: Owners) -> None:
    first, raw = await node.start()
    second = owner.start("jobs/b", storage=f"sqlite:///{node.path}", arguments=("--scouting", "off"))

    assert second.wait() == 1
    assert f"already has an owner: process {first.pid}" in second.log
    assert "Traceback" not in second.log
    assert "code" not in await raw("enqueue", b"1")


async def test_two_owners_of_one_queue_are_warned_of(owner: Owners) -> None:
    first, second = owner.start(QUEUE), owner.start(QUEUE)

    first.says("another owner")
    second.says("another owner")
