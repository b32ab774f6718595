"""/livez, /readyz and /metrics over the smallest HTTP that a probe understands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from supervisor.status import Status

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 5.0
_PLAIN = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
}
_PHRASES[503] = "Service Unavailable"


class Pictures(Protocol):
    """Of a whole fleet, or of one process that is one."""

    def glance(self) -> Status: ...

    def take(self) -> Status: ...


class Endpoint:
    """One request a connection. Raises OSError on entry if the port is taken."""

    def __init__(self, host: str, port: int, *, picture: Pictures, metrics: Callable[[Status], str]) -> None:
        self._host = host
        self._port = port
        self._picture = picture
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=8192)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def port(self) -> int:
        """The one the kernel gave, when 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # a probe that hung up or talks nonsense
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    def _answer(self, request: bytes) -> bytes:
        parts = request.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3:
            return _response(400, "bad request\n")
        if parts[0] not in (b"GET", b"HEAD"):
            return _response(405, "only GET and HEAD\n")
        response = self._page(parts[1].split(b"?", 1)[0])
        return response if parts[0] == b"GET" else response.split(b"\r\n\r\n", 1)[0] + b"\r\n\r\n"

    def _page(self, path: bytes) -> bytes:
        match path:
            case b"/livez":
                return _response(200, "ok\n")
            case b"/readyz":
                status = self._picture.glance()
                return _response(200 if status.ready else 503, f"{'ok' if status.ready else 'not ready'}\n")
            case b"/metrics":
                return self._metrics_page()
            case _:
                return _response(404, "there are /livez, /readyz and /metrics\n")

    def _metrics_page(self) -> bytes:
        try:
            return _response(200, self._metrics(self._picture.take()), _METRICS)
        except Exception:  # the application's hook: a probe must not end the supervisor
            log.exception("metrics hook failed")
            return _response(500, "metrics failed, see the log\n")


def _response(code: int, body: str, kind: str = _PLAIN) -> bytes:
    data = body.encode()
    head = f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
