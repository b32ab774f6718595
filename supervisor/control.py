"""The control socket: one JSON line asks, one answers. Only the owner of the file may connect."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from supervisor.desk import Desk
from supervisor.status import Status

log = logging.getLogger(__name__)


class Control:
    """Raises OSError on entry if a living supervisor has the socket; a stale one is taken over."""

    def __init__(self, path: Path, *, picture: Callable[[], Status], desk: Desk) -> None:
        self._path = path
        self._picture = picture
        self._desk = desk
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def __aenter__(self) -> Self:
        _remove_stale(self._path)
        sock = _bind(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._serve, sock=sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for line in reader:
                answer = await self._answer(line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the client hung up, or sent a line beyond the limit
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is a JSON object")
            return await self._obey(request)
        except ValueError as error:
            return {"ok": False, "error": str(error)}

    async def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"command": "status"}:
                return {"ok": True, "status": self._picture().to_wire()}
            case {"command": "reload"}:
                return await self._reload(wait=bool(request.get("wait")))
            case {"command": "quiet" | "resume" as command}:
                self._desk.set_quiet(command == "quiet")
            case {"command": "scale", "procs": int(procs)}:
                return {"ok": True, "procs": self._desk.scale(procs)}
            case {"command": "stacks"}:
                self._desk.stacks()
            case {"command": "stop"}:
                self._desk.stop()
            case _:
                return {"ok": False, "error": f"unknown command {request.get('command')!r}"}
        return {"ok": True}

    async def _reload(self, *, wait: bool) -> dict[str, Any]:
        future = self._desk.reload()
        if not wait:
            return {"ok": True}
        result = await asyncio.shield(future)
        return {"ok": result.error is None, "error": result.error, "generation": result.generation}


def _bind(path: Path) -> socket.socket:
    """Bound under a umask: the socket is never open to others, not even for a moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    try:
        sock.bind(str(path))
        sock.listen()  # at once: one that nobody listens on is taken for a stale one
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(old)
    return sock


def _remove_stale(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody lives there
    raise OSError(errno.EADDRINUSE, "another supervisor is listening here", str(path))
