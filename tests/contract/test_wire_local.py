"""An owner's local socket: who asks there, what goes over the mesh all the same, and what the end of either means."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psutil
import pytest

from istos_worker.client.sync import SyncClient
from istos_worker.errors import IstosError, UnauthorizedError
from istos_worker.wire import local_client, local_connection
from istos_worker.wire.asking import Incoming
from istos_worker.wire.auth import TokenAuthorizer
from istos_worker.wire.local_blocking import BlockingConnection
from istos_worker.wire.local_client import LocalConnections
from istos_worker.wire.local_connection import LocalConnection
from istos_worker.wire.local_frames import (
    GREETING,
    FrameDecoder,
    FrameError,
    decode_answer,
    encode_answer,
    encode_question,
)
from istos_worker.wire.local_server import LocalServer
from istos_worker.wire.local_socket import SWITCH, bound_to, connected_to
from istos_worker.wire.session import Session
from tests.fixtures.live import Live, Raw, live_node, until

LONG_S = 20.0


@pytest.fixture
async def node() -> AsyncIterator[Live]:
    async with live_node() as live:
        yield live


async def offered(session: Session, prefix: str = "jobs/a") -> str:
    name = (await Raw(session, prefix)("info"))["local"]
    assert isinstance(name, str)
    return name


# who asks where


async def test_a_client_asks_at_the_socket_from_its_first_enqueue(node: Live, heard: list[str]) -> None:
    await node.own()
    client = await node.client()

    await client.enqueue("jobs/a", 1)
    await client.stats("jobs/a")

    assert heard == ["jobs/a/enqueue", "jobs/a/stats"]


async def test_threads_of_a_waiting_client_share_connections_and_leave_none(
    node: Live, heard: list[str]
) -> None:
    role = await node.own()
    client = SyncClient(node.settings)

    def produce() -> list[str]:
        return [client.enqueue("jobs/a", number) for number in range(5)]

    ids = await asyncio.gather(*(asyncio.to_thread(produce) for _ in range(4)))

    assert len({job_id for some in ids for job_id in some}) == 20
    assert (await role.store.stats())["ready"] == 20
    assert heard == ["jobs/a/enqueue"] * 20
    assert 2 <= accepted() <= 1 + 4  # the loop's, and one a thread

    await asyncio.to_thread(client.close)

    await until(none_is_accepted)


def accepted() -> int:
    """How many connections the owner of this process has."""
    found = psutil.Process().net_connections(kind="unix")
    named = [one for one in found if str(one.laddr).startswith("@istos-worker/")]
    return len(named) - 1  # the one that listens


async def none_is_accepted() -> bool:
    return accepted() == 0


async def test_switched_off_on_either_side_everything_goes_over_the_mesh(
    node: Live, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.own("jobs/a")
    monkeypatch.setenv(SWITCH, "off")
    await node.own("jobs/b")
    client = await node.client()

    await client.enqueue("jobs/a", 1)
    await client.enqueue("jobs/b", 1)

    assert heard == []


async def test_an_owner_without_a_socket_offers_none(node: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    await node.own()

    assert "local" not in await Raw(await node.connect())("info")


async def test_queues_of_one_owner_share_a_connection(node: Live, heard: list[str]) -> None:
    await asyncio.gather(node.own("jobs/a"), node.own("jobs/b"))
    session = await node.connect()

    names = await asyncio.gather(offered(session, "jobs/a"), offered(session, "jobs/b"))
    await Raw(session, "jobs/a")("stats")
    await Raw(session, "jobs/b")("stats")

    assert len(set(names)) == 1
    assert heard == ["jobs/a/stats", "jobs/b/stats"]


@pytest.mark.parametrize("size", [0, 70_000, 7 << 20])
async def test_bodies_of_every_size_come_and_go_whole(node: Live, heard: list[str], size: int) -> None:
    await node.own()
    session = await node.connect()
    await offered(session)
    raw, body = Raw(session), b'"' + b"x" * size + b'"'

    await raw.enqueue(body)
    job = await raw("claim")
    after = await raw("stats")

    assert base64.b64decode(job["data"]) == body
    assert after["counts"]["leased"] == 1
    assert heard == ["jobs/a/enqueue", "jobs/a/claim", "jobs/a/stats"]


async def test_what_is_too_long_for_a_frame_is_refused_over_the_mesh(node: Live, heard: list[str]) -> None:
    await node.own()
    session = await node.connect()
    await offered(session)

    refused = await Raw(session)("enqueue", b"x" * ((32 << 20) + 1))

    assert refused["code"] == "payload_too_large"
    assert heard == []


async def test_info_and_patterns_are_asked_over_the_mesh(node: Live, heard: list[str]) -> None:
    await node.own()
    session = await node.connect()
    await offered(session)

    pattern = await session.ask("jobs/a/*", timeout_s=LONG_S)
    info = await asyncio.to_thread(session.ask_and_wait, "jobs/a/info")
    await session.ask("jobs/a/info")

    assert pattern is not None
    assert orjson.loads(pattern)["code"] == "bad_request"
    assert info is not None
    assert heard == []


# whom the socket lets in, and whom it believes


async def test_only_the_owners_user_is_let_in(node: Live) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    await node.own()
    name = await offered(await node.connect())
    code = (
        "import os, socket, sys\n"
        "os.setuid(12345)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect('\\0istos-worker/' + sys.argv[1])\n"
        "print(len(s.recv(100)))\n"
    )
    command = [sys.executable, "-c", code, name]

    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=LONG_S)

    assert said.stdout == "0\n" or "ConnectionResetError" in said.stderr


async def test_somebody_elses_owner_is_asked_over_the_mesh(
    node: Live, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.own()
    name = await offered(await node.connect())
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)

    with pytest.raises(PermissionError):
        connected_to(name)
    client = await node.client()
    await client.enqueue("jobs/a", 1)

    assert heard == []


@pytest.mark.parametrize("name", ["", "../x", "a" * 31, "A" * 32, "a" * 33])
def test_a_name_from_the_mesh_can_be_nothing_but_one_of_ours(name: str) -> None:
    with pytest.raises(OSError, match="not the name"):
        connected_to(name)


@pytest.mark.parametrize(
    ("says", "refused"), [(b"SSH-2.0-OpenSSH_9.2\r\n", FrameError), (b"istos", TimeoutError)]
)
async def test_whoever_listens_and_does_not_greet_is_told_nothing(
    says: bytes, refused: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "GREETING_S", 0.05)
    name = secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"\0istos-worker/{name}")
        impostor.listen()
        impostor.settimeout(LONG_S)
        opening = asyncio.create_task(LocalConnection.open(name, nowhere()))
        accepted, _ = await asyncio.to_thread(impostor.accept)
        accepted.settimeout(LONG_S)
        accepted.sendall(says)

        with pytest.raises(refused):
            await opening

        assert await asyncio.to_thread(accepted.recv, 1) == b""
        accepted.close()


async def test_noise_ends_its_own_connection_and_no_other(node: Live, heard: list[str]) -> None:
    await node.own()
    session = await node.connect()
    with connected_to(await offered(session)) as noisy:
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(noisy, 100) == GREETING

        await loop.sock_sendall(noisy, b"\0\0\0\x03abc")

        assert await loop.sock_recv(noisy, 100) == b""
    assert (await Raw(session)("stats"))["counts"]["ready"] == 0
    assert heard == ["jobs/a/stats"]


async def test_a_caller_that_takes_no_answers_is_heard_no_more_until_it_does(node: Live) -> None:
    await node.own()
    session = await node.connect()
    raw = Raw(session)
    name = await offered(session)
    for _ in range(3):
        await raw.enqueue(b'"' + b"x" * (5 << 20) + b'"')
    loop = asyncio.get_running_loop()
    with connected_to(name) as greedy:
        assert await loop.sock_recv(greedy, 100) == GREETING

        async def claim(number: int) -> None:
            await loop.sock_sendall(greedy, encode_question(number, "jobs/a/claim", "n=1", None, None))

        async def leased() -> int:
            return int((await raw("stats"))["counts"]["leased"])

        async def is_given() -> bool:
            return await leased() > 0

        await claim(1)
        await until(is_given)
        await claim(2)
        await claim(3)
        assert [await leased() for _ in range(5)] == [1] * 5

        decoder = FrameDecoder(1 << 30)
        numbers: list[int] = []
        async with asyncio.timeout(LONG_S):
            while len(numbers) < 3:
                frames = decoder.feed(await loop.sock_recv(greedy, 1 << 16))
                numbers += [decode_answer(frame).number for frame in frames]
    assert numbers == [1, 2, 3]
    assert await leased() == 3


# ends


async def test_an_owner_that_stops_is_not_asked_any_more_and_the_next_one_is(
    node: Live, heard: list[str]
) -> None:
    first = await node.own()
    client = await node.client()
    await client.enqueue("jobs/a", 1)
    first.unbind()
    second = await node.own()

    await client.enqueue("jobs/a", 2)

    assert (await first.store.stats())["ready"] == 1
    assert (await second.store.stats())["ready"] == 1
    await until(back_at_the_socket(heard, lambda: client.enqueue("jobs/a", 3)))


async def test_a_waiting_client_finds_the_next_owner(node: Live, heard: list[str]) -> None:
    first = await node.own()
    client = SyncClient(node.settings)
    await asyncio.to_thread(client.enqueue, "jobs/a", 1)
    first.unbind()
    await node.own()

    await until(back_at_the_socket(heard, lambda: asyncio.to_thread(client.enqueue, "jobs/a", 2)))
    await asyncio.to_thread(client.close)


async def test_a_waiting_client_sends_again_what_was_lost_on_its_way(
    node: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = await node.own()
    client = SyncClient(node.settings)
    await asyncio.to_thread(client.enqueue, "jobs/a", 1)
    really, lost = Session.ask_and_wait, []

    def loses_one(session: Session, key: str, params: str = "", **rest: Any) -> bytes | None:
        really(session, key, params, **rest)
        lost.append(params)
        raise TimeoutError

    monkeypatch.setattr(Session, "ask_and_wait", loses_one)
    await asyncio.to_thread(client.enqueue, "jobs/a", 2)

    assert len(lost) == 1
    assert (await role.store.stats())["ready"] == 2
    await asyncio.to_thread(client.close)


def back_at_the_socket(
    heard: list[str], ask: Callable[[], Awaitable[object]]
) -> Callable[[], Awaitable[bool]]:
    async def is_back() -> bool:
        del heard[:]
        await ask()
        return bool(heard)

    return is_back


async def test_a_session_that_closes_ends_its_connections_and_its_socket(node: Live) -> None:
    await node.own()
    asking = await node.connect()
    name = await offered(asking)
    assert accepted() == 1

    await asking.aclose()

    await until(none_is_accepted)
    other = await node.connect()
    await offered(other)
    waiting = other.ask("jobs/a/claim", "n=1;wait=20", timeout_s=LONG_S)
    await node.session.aclose()
    assert await waiting is None
    with pytest.raises(ConnectionRefusedError):
        connected_to(name)


class Mesh:
    """Who asks it for `info` is offered `name`, as by a session; after so many `silences`. `see` tells of tokens."""

    def __init__(self) -> None:
        self.connections = LocalConnections(self, asyncio.get_running_loop())
        self.asked: list[str] = []
        self.silences = 0
        self.name = ""
        self.see: Callable[[list[tuple[str, bool]]], None]

    def watch_tokens(self, key_expr: str, take: Callable[[list[tuple[str, bool]]], None]) -> Mesh:
        assert key_expr == "jobs/a/_owners/*"
        self.see = take
        return self

    def undeclare(self) -> None:
        """It is watched no more."""

    def ask(self, key: str, params: str = "", **rest: Any) -> asyncio.Future[bytes | None]:
        self.asked.append(key)
        return asyncio.ensure_future(self.offer())

    async def offer(self) -> bytes | None:
        if self.silences:
            self.silences -= 1
            raise TimeoutError
        info = orjson.dumps({"local": self.name})
        await self.connections.meet("jobs/a", info)
        return info


def nowhere() -> LocalConnections:
    return Mesh().connections


class Served:
    """A local socket at which `claim` waits and `stats` is answered; and one who asks there."""

    def __init__(self, server: LocalServer, connection: LocalConnection) -> None:
        self.server = server
        self.connection = connection
        self.waiting: list[Incoming] = []
        self.takes = {"claim": self.waiting.extend, "stats": self._answer}
        for verb, take in self.takes.items():
            server.serve(f"jobs/a/{verb}", take)

    def withdraw(self, verb: str) -> None:
        self.server.withdraw(f"jobs/a/{verb}", self.takes[verb])

    def _answer(self, queries: list[Incoming]) -> None:
        for query in queries:
            query.reply(b"{}")

    def ask(self, verb: str, timeout_s: float = LONG_S) -> asyncio.Future[bytes | None]:
        return self.connection.ask(f"jobs/a/{verb}", "", None, None, timeout_s)

    def ask_and_wait(self, verb: str, timeout_s: float = LONG_S) -> asyncio.Future[bytes | None]:
        asked = asyncio.to_thread(self.connection.ask_and_wait, f"jobs/a/{verb}", "", None, None, timeout_s)
        return asyncio.ensure_future(asked)

    async def until_asked(self, count: int) -> None:
        async def are_there() -> bool:
            return len(self.waiting) == count

        await until(are_there)


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    server = LocalServer()
    await server.open()
    yield Served(server, await LocalConnection.open(server.name, nowhere()))
    server.abort()


async def test_the_end_of_a_connection_ends_its_questions() -> None:
    async with served() as there:
        asked = [there.ask("claim"), there.ask("claim"), there.ask_and_wait("claim")]
        await there.until_asked(3)
        assert await there.connection.ask("jobs/b/claim", "", None, None, LONG_S) is None

        there.server.abort()

        assert await asyncio.gather(*asked) == [None] * 3


async def test_a_server_that_closes_answers_what_it_was_asked() -> None:
    async with served() as there:
        asked = [there.ask("claim"), there.ask("claim")]
        await there.until_asked(2)

        there.withdraw("stats")
        there.withdraw("claim")
        assert await there.ask("claim") is None
        for number, query in enumerate(there.waiting):
            query.reply(b"%d" % number)

        assert await asyncio.gather(*asked) == [b"0", b"1"]

        async def is_over() -> bool:
            return not there.connection.is_open

        await until(is_over)


async def test_silence_is_a_timeout_and_a_late_answer_is_nobodys() -> None:
    async with served() as there:
        silent = [there.ask("claim", 0.02), there.ask_and_wait("claim", 0.02)]
        failed = await asyncio.gather(*silent, return_exceptions=True)
        assert [type(failure) for failure in failed] == [TimeoutError, TimeoutError]
        await there.until_asked(2)

        for query in there.waiting:
            query.reply(b"late")

        assert await there.ask("stats") == b"{}"
        assert await there.ask_and_wait("stats") == b"{}"


@pytest.mark.parametrize("sent", [b"", encode_answer(0, b"{}")[:-1]], ids=["nothing", "a part"])
def test_a_thread_waits_for_an_answer_as_long_as_it_is_to(sent: bytes) -> None:
    name = secrets.token_hex(16)
    with bound_to(name) as listening:
        listening.setblocking(True)
        listening.listen()
        with ThreadPoolExecutor(1) as threads:
            accepting = threads.submit(listening.accept)
            greeting = threads.submit(lambda: accepting.result()[0].sendall(GREETING + sent))
            asking = BlockingConnection(name, LONG_S)
            greeting.result()
            with accepting.result()[0], pytest.raises(TimeoutError):
                asking.ask("jobs/a/stats", "", None, None, time.monotonic() + 0.02)

    assert not asking.is_open


async def test_an_answer_in_time_leaves_nothing_to_time_out() -> None:
    trouble: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    async with served() as there:
        assert await there.ask("stats", 0.01) == b"{}"
        with pytest.raises(TimeoutError):
            await there.ask("claim", 0.02)
    assert trouble == []


@pytest.mark.parametrize("how", ["from the loop", "from a thread"])
@pytest.mark.parametrize("fails", ["silent", "not served"])
async def test_what_fails_at_the_socket_is_asked_over_the_mesh_until_its_owner_offers_it_again(
    how: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_client, "_BUSY_S", 0.01)
    mesh = Mesh()

    def way() -> LocalConnection | None:
        return mesh.connections.to("jobs/a/claim", None, None)

    async with served() as there:
        mesh.name = there.server.name
        await mesh.offer()
        met = way()
        assert met is not None
        there.connection = met
        if fails == "not served":
            there.withdraw("claim")

        asked = there.ask("claim", 0.02) if how == "from the loop" else there.ask_and_wait("claim", 0.02)
        await asyncio.gather(asked, return_exceptions=True)

        mesh.silences = 2
        assert way() is None

        async def is_back() -> bool:
            return way() is met

        await until(is_back)
        assert mesh.asked == ["jobs/a/info"] * 3
        mesh.connections.abort()


async def test_an_owner_that_the_mesh_shows_no_more_is_left_though_its_socket_is_open() -> None:
    """It is frozen, or its child keeps what it had open."""
    mesh = Mesh()
    async with served() as there:
        mesh.name = there.server.name
        await mesh.offer()
        met = mesh.connections.to("jobs/a/claim", None, None)
        assert met is not None
        there.connection = met
        asked = [there.ask("claim"), there.ask_and_wait("claim")]
        await there.until_asked(2)
        other = met.ask("jobs/a", "", None, None, LONG_S)  # of no queue of ours

        mesh.see([("jobs/a/_owners/1", True)])
        assert mesh.connections.to("jobs/a/claim", None, None) is met
        mesh.see([("jobs/a/_owners/1", False)])

        assert await asyncio.gather(*asked) == [None, None]
        assert await other is None  # by the server
        assert mesh.connections.to("jobs/a/claim", None, None) is None
        mesh.connections.abort()


async def test_a_client_whose_token_the_owner_wants_asks_at_the_socket(node: Live, heard: list[str]) -> None:
    await node.own(authorizer=TokenAuthorizer("T0"))
    client = await node.client(token="T0")

    await client.enqueue("jobs/a", 1)
    with pytest.raises(UnauthorizedError):
        await client.enqueue("jobs/a", 1, token="T1")

    assert heard == ["jobs/a/enqueue"] * 2


async def test_a_second_owner_in_a_session_keeps_the_socket_when_the_first_one_stops(
    node: Live, heard: list[str]
) -> None:
    first = await node.own()
    session = await node.connect()
    name = await offered(session)
    second = await node.own()

    first.unbind()

    assert await offered(session) == name
    assert await Raw(session).enqueue(b"1")
    assert heard == ["jobs/a/enqueue"]
    assert (await second.store.stats())["ready"] == 1


async def test_an_owner_keeps_descriptors_for_the_mesh(
    node: Live, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))  # half are in use in any process
    role = await node.own()
    client, waiting = await node.client(), SyncClient(node.settings)

    await client.enqueue("jobs/a", 1)
    await asyncio.to_thread(waiting.enqueue, "jobs/a", 1)

    assert (await role.store.stats())["ready"] == 2
    assert (heard, accepted()) == ([], 0)
    await asyncio.to_thread(waiting.close)


async def test_threads_for_which_an_owner_has_no_room_ask_over_the_mesh(
    node: Live, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.own()
    client = SyncClient(node.settings)
    await asyncio.to_thread(client.enqueue, "jobs/a", 1)
    del heard[:]
    monkeypatch.setattr(local_connection, "_IDLE_S", 0.0)
    monkeypatch.setattr(LocalServer, "has_room_for", lambda server, descriptor: False)

    async def is_over_the_mesh() -> bool:
        del heard[:]
        await asyncio.to_thread(client.enqueue, "jobs/a", 1)
        return not heard

    await until(is_over_the_mesh)
    assert [await is_over_the_mesh() for _ in range(3)] == [True] * 3
    await asyncio.to_thread(client.close)


async def test_a_waiting_client_that_is_closed_lets_go_of_its_threads(node: Live) -> None:
    role = await node.own()
    client = SyncClient(node.settings)
    await asyncio.to_thread(client.enqueue, "jobs/a", 1)
    role.unbind()
    asked = asyncio.create_task(asyncio.to_thread(client.enqueue, "jobs/a", 2, timeout_s=LONG_S))

    async def is_patient() -> bool:
        running = client._running
        return running is not None and bool(asyncio.all_tasks(running._loop))

    await until(is_patient)
    await asyncio.to_thread(client.close)

    with pytest.raises(IstosError, match="closed"):
        async with asyncio.timeout(LONG_S / 2):
            await asked


async def test_connections_of_threads_that_ask_no_more_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_connection, "_IDLE_S", 0.0)
    async with served() as there:
        await asyncio.gather(*(there.ask_and_wait("stats") for _ in range(4)))

        async def is_one_left() -> bool:
            return accepted() == 1

        await until(is_one_left)
