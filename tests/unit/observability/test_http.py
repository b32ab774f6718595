from __future__ import annotations

import asyncio
import contextlib

import pytest

from istos_worker.observability import http
from istos_worker.observability.http import Request, Response, Server


async def echo(request: Request) -> Response:
    if request.path == "/broken":
        raise RuntimeError("a defect of ours")
    return Response.of_json(
        {
            "method": request.method,
            "path": request.path,
            "query": dict(request.query),
            "body": len(request.body),
        }
    )


async def exchanged(raw: bytes) -> bytes:
    async with Server("127.0.0.1", 0, echo) as server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        return answer


async def test_a_request_is_answered_and_the_connection_closed() -> None:
    raw = b"POST /a%20b?x=1&y=%2F HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"

    head, _, body = (await exchanged(raw)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in head
    assert body == b'{"method":"POST","path":"/a b","query":{"x":"1","y":"/"},"body":3}'


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: a\r\n\r\n", 400),
        (b"GET /?" + b"a&" * 100 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_nonsense_is_refused_with_a_reason(raw: bytes, status: int) -> None:
    answer = await exchanged(raw)

    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert b"a defect of ours" not in answer


async def test_head_has_no_body() -> None:
    head, _, body = (await exchanged(b"HEAD / HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")

    assert b" 200 OK" in head
    assert body == b""


async def test_who_says_nothing_is_let_go_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ARRIVE_WITHIN_S", 0.05)
    async with Server("127.0.0.1", 0, echo) as server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTT")

        assert await reader.read() == b""
        writer.close()


async def test_stopping_waits_for_nobody_who_is_connected() -> None:
    async with asyncio.timeout(20):
        async with Server("127.0.0.1", 0, echo) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTT")
            await writer.drain()
        with contextlib.suppress(ConnectionResetError):  # nobody had read what we wrote
            assert await reader.read() == b""
        writer.close()


async def test_a_port_in_use_is_an_error() -> None:
    async with Server("127.0.0.1", 0, echo) as first:
        with pytest.raises(OSError, match="in use"):
            async with Server("127.0.0.1", first.port, echo):
                pass
