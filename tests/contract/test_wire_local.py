"""An owner's local socket: who asks there, what goes over the mesh all the same, and what the end of either means."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from istos_worker.client.sync import SyncClient
from istos_worker.wire.asking import Incoming
from istos_worker.wire.frames import GREETING, encode_question
from istos_worker.wire.local_line import LocalLine, LocalLines
from istos_worker.wire.local_name import SWITCH, connected_to
from istos_worker.wire.local_server import LocalServer
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


async def test_a_waiting_client_of_many_threads_asks_at_the_socket(node: Live, heard: list[str]) -> None:
    role = await node.own()

    def produce() -> list[str]:
        with SyncClient(node.settings) as client:
            return [client.enqueue("jobs/a", number) for number in range(3)]

    ids = await asyncio.gather(*(asyncio.to_thread(produce) for _ in range(4)))

    assert len({job_id for some in ids for job_id in some}) == 12
    assert (await role.store.stats())["ready"] == 12
    assert heard == ["jobs/a/enqueue"] * 12


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


async def test_queues_of_one_owner_share_a_line(node: Live, heard: list[str]) -> None:
    await node.own("jobs/a")
    await node.own("jobs/b")
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

    assert base64.b64decode(job["data"]) == body
    assert heard == ["jobs/a/enqueue", "jobs/a/claim"]


async def test_what_is_too_long_for_a_frame_is_refused_over_the_mesh(node: Live, heard: list[str]) -> None:
    await node.own()
    session = await node.connect()
    await offered(session)

    refused = await Raw(session)("enqueue", b"x" * ((32 << 20) + 1))

    assert refused["code"] == "payload_too_large"
    assert heard == []


# whom the socket lets in, and whom it believes


async def test_only_the_owners_user_is_let_in(node: Live) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    await node.own()
    name = await offered(await node.connect())
    code = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect('\\0istos-worker/' + sys.argv[1])\n"
        "print(len(s.recv(100)))\n"
    )
    command = [sys.executable, "-c", code, name]

    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=LONG_S)

    assert said.stdout == "0\n" or "ConnectionResetError" in said.stderr


@pytest.mark.parametrize("name", ["", "../x", "a" * 31, "A" * 32, "a" * 33])
def test_a_name_from_the_mesh_can_be_nothing_but_one_of_ours(name: str) -> None:
    with pytest.raises(OSError, match="not the name"):
        connected_to(name)


def test_a_process_that_listens_and_does_not_greet_is_left_alone() -> None:
    name = "0" * 31 + f"{os.getpid() % 16:x}"
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"\0istos-worker/{name}")
        impostor.listen()

        async def knock(says: bytes) -> str:
            loop = asyncio.get_running_loop()
            opening = asyncio.create_task(LocalLine.open(name, LocalLines(Nobody(), loop)))
            accepted, _ = await asyncio.to_thread(impostor.accept)
            accepted.sendall(says)
            with pytest.raises((OSError, ValueError)) as refused:
                await opening
            assert accepted.recv(1) == b""  # not a byte was said
            accepted.close()
            return type(refused.value).__name__

        assert asyncio.run(knock(b"SSH-2.0-OpenSSH_9.2\r\n")) == "ConnectionError"
        assert asyncio.run(knock(b"istos")) == "TimeoutError"


class Nobody:
    def ask(self, key: str, params: str = "", **rest: object) -> asyncio.Future[bytes | None]:
        raise AssertionError("nobody is asked")


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


async def test_a_caller_that_takes_no_answers_is_asked_for_no_more_and_harms_nobody(node: Live) -> None:
    await node.own()
    session = await node.connect()
    raw = Raw(session)
    name = await offered(session)
    for _ in range(3):
        await raw.enqueue(b'"' + b"x" * (5 << 20) + b'"')
    with connected_to(name) as greedy:
        loop = asyncio.get_running_loop()
        await loop.sock_recv(greedy, 100)

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
    assert await raw.enqueue(b"1", job_id="next") == "next"


# ends


async def test_an_owner_that_leaves_answers_nobody_more_and_another_is_found(
    node: Live, heard: list[str]
) -> None:
    first = await node.own()
    client = await node.client()
    await client.enqueue("jobs/a", 1)
    first.unbind()
    await node.own()

    await client.enqueue("jobs/a", 2)
    del heard[:]
    await client.enqueue("jobs/a", 3)

    assert heard == ["jobs/a/enqueue"]


async def test_whoever_was_idle_when_its_owner_was_replaced_is_at_the_socket_again_soon(
    heard: list[str],
) -> None:
    async with live_node() as node:
        first = await node.own()
        client = await node.client()
        await client.enqueue("jobs/a", 1)
        await first.aclose()
        await node.own()

        async def at_the_socket() -> bool:
            del heard[:]
            await client.enqueue("jobs/a", 2)
            return bool(heard)

        await until(at_the_socket)


async def test_a_waiting_client_finds_the_next_owner(node: Live, heard: list[str]) -> None:
    first = await node.own()
    client = SyncClient(node.settings)
    await asyncio.to_thread(client.enqueue, "jobs/a", 1)
    first.unbind()
    await node.own()

    async def at_the_socket() -> bool:
        del heard[:]
        await asyncio.to_thread(client.enqueue, "jobs/a", 2)
        return bool(heard)

    await until(at_the_socket)
    await asyncio.to_thread(client.close)


async def test_the_end_of_a_connection_ends_its_questions() -> None:
    server = LocalServer()
    server.serve("jobs/a/claim", lambda queries: None)  # they wait
    await server.open()
    line = await LocalLine.open(server.name, LocalLines(Nobody(), asyncio.get_running_loop()))
    asked = [line.ask("jobs/a/claim", "", None, None, LONG_S) for _ in range(3)]
    other = asyncio.create_task(asyncio.to_thread(line.ask_and_wait, "jobs/a/claim", "", None, None, LONG_S))
    served = await line.ask("jobs/b/claim", "", None, None, LONG_S)

    server.abort()

    assert served is None
    assert await asyncio.gather(*asked, other) == [None] * 4


async def test_a_server_that_closes_answers_what_it_was_asked() -> None:
    waiting: asyncio.Queue[Incoming] = asyncio.Queue()

    def take(queries: list[Incoming]) -> None:
        for query in queries:
            waiting.put_nowait(query)

    server = LocalServer()
    server.serve("jobs/a/claim", take)
    await server.open()
    line = await LocalLine.open(server.name, LocalLines(Nobody(), asyncio.get_running_loop()))
    asked = [line.ask("jobs/a/claim", "", None, None, LONG_S) for _ in range(2)]
    first, second = await waiting.get(), await waiting.get()

    server.withdraw("jobs/a/claim")
    late = line.ask("jobs/a/claim", "", None, None, LONG_S)
    assert await late is None
    first.reply(b"1")
    second.reply(b"2")

    assert await asyncio.gather(*asked) == [b"1", b"2"]

    async def is_over() -> bool:
        return not line.is_open

    await until(is_over)


async def test_silence_is_a_timeout_and_a_late_answer_is_nobodys() -> None:
    waiting: list[Incoming] = []

    def answer(queries: list[Incoming]) -> None:
        for query in queries:
            query.reply(b"{}")

    server = LocalServer()
    server.serve("jobs/a/claim", waiting.extend)
    server.serve("jobs/a/stats", answer)
    await server.open()
    line = await LocalLine.open(server.name, LocalLines(Nobody(), asyncio.get_running_loop()))

    with pytest.raises(TimeoutError):
        await line.ask("jobs/a/claim", "", None, None, 0.02)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(line.ask_and_wait, "jobs/a/claim", "", None, None, 0.02)
    for query in waiting:
        query.reply(b"late")

    assert await line.ask("jobs/a/stats", "", None, None, LONG_S) == b"{}"
    assert await asyncio.to_thread(line.ask_and_wait, "jobs/a/stats", "", None, None, LONG_S) == b"{}"
    server.abort()
