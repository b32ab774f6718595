"""The HTTP/1.1 that a dashboard needs: one request a connection, small bodies, no patience for nonsense. Knows bytes;
not what is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

import orjson

log = logging.getLogger(__name__)

_HEAD_BYTES = 16 * 1024
_BODY_BYTES = 64 * 1024
_ARRIVE_WITHIN_S = 10.0
_MAX_CONNECTIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, *, status: int = 200) -> Response:
        return cls(status=status, body=orjson.dumps(value), headers={"Content-Type": "application/json"})

    @classmethod
    def error(cls, status: int, code: str, message: str) -> Response:
        return cls.of_json({"error": code, "message": message}, status=status)

    def encode(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        named = {**self.headers, "Content-Length": str(len(self.body)), "Connection": "close"}
        lines += [f"{name}: {value}" for name, value in named.items()]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


class MalformedError(ValueError):
    """What came is no request that we take."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """A context manager. Raises OSError on entry if the port is taken."""

    def __init__(self, host: str, port: int, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._host = host
        self._port = port
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    @property
    def port(self) -> int:
        """The one the kernel gave, when 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                await self._exchange(reader, writer)
        except (TimeoutError, OSError, EOFError):
            pass  # whoever asked is gone, or never said what
        except asyncio.CancelledError:
            pass  # we stop; the stream's own machinery would report it as an error
        finally:
            self._connections.discard(task)
            with contextlib.suppress(OSError):
                writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ARRIVE_WITHIN_S):
                request = await read_request(reader)
        except MalformedError as refused:
            response = Response.error(refused.status, "bad_request", str(refused))
        else:
            response = await self._answered(request)
            if request.method == "HEAD":
                response = Response(status=response.status, headers=response.headers)
        writer.write(response.encode())
        async with asyncio.timeout(_ARRIVE_WITHIN_S):
            await writer.drain()

    async def _answered(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except Exception:  # one request's defect is not the end of the others
            log.exception("%s %s failed", request.method, request.path)
            return Response.error(500, "internal_error", "this request failed, see the log")


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Raises MalformedError for what is not taken, EOFError when the other side hangs up."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as long:
        raise MalformedError(431, f"the headers have more than {_HEAD_BYTES} bytes") from long
    method, target, headers = _parsed(head.decode("latin-1"))
    body = await _body(reader, headers)
    path, _, asked = target.partition("?")
    try:
        query = dict(parse_qsl(asked, keep_blank_values=True, max_num_fields=20))
    except ValueError as wrong:
        raise MalformedError(400, "the query cannot be read") from wrong
    return Request(method=method, path=unquote(path), query=query, headers=headers, body=body)


def _parsed(head: str) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise MalformedError(400, "this is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip() or key in headers:
            raise MalformedError(400, "a header is broken, or there twice")
        headers[key] = value.strip()
    return words[0], words[1], headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise MalformedError(411, "send the body with a Content-Length")
    told = headers.get("content-length", "0")
    if not (told.isascii() and told.isdigit()):
        raise MalformedError(400, "Content-Length is no number")
    if len(told) > 9 or int(told) > _BODY_BYTES:
        raise MalformedError(413, f"the body has more than {_BODY_BYTES} bytes")
    return await reader.readexactly(int(told))
