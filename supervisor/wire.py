"""JSON lines over one end of a socket pair. Knows framing and back-pressure; not what is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Wire = Mapping[str, Any]

_CHUNK = 65536


_as_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def encode(message: Wire) -> bytes:
    return _as_json(message).encode() + b"\n"


class Lines:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


class Channel:
    """One end of a link inside an event loop. Never blocks; tells once when the other end is gone."""

    def __init__(
        self, sock: socket.socket, *, on_message: Callable[[dict[str, Any]], None], on_eof: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_eof = on_eof
        self._lines = Lines()
        self._out = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.at_eof = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self._sock.fileno(), self._read)
        self._flush()

    def detach(self) -> None:
        """The loop ends, the link does not: what is sent from now on is sent at once or lost."""
        self._detach()
        self._loop = None

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._detach()
            self._sock.close()
        self.at_eof = True

    def send(self, message: Wire) -> None:
        """Kept and sent later if the other end does not read; dropped if it is gone."""
        if not self.at_eof:
            self._out += encode(message)
            self._flush()

    def send_fds(self, message: Wire, fds: Sequence[int]) -> None:
        """At once or not at all: descriptors cannot wait in a buffer. Raises OSError."""
        if self._out or self.at_eof:
            raise BlockingIOError("the other end does not read")
        data = encode(message)
        sent = socket.send_fds(self._sock, [data], list(fds))
        self._out += data[sent:]
        self._flush()

    def read_to_end(self) -> None:
        """The other process is dead: what it still said is in the socket."""
        while not self.at_eof:
            if not self._read():
                return

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            self._watch_writable()
            return
        except OSError:
            self._out.clear()
        if self._loop is not None and self._sock.fileno() >= 0:
            self._loop.remove_writer(self._sock.fileno())

    def _watch_writable(self) -> None:
        if self._loop is not None:
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _read(self) -> bool:
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._ended()
            return False
        for message in self._lines.feed(data):
            self._on_message(message)
        return True

    def _ended(self) -> None:
        if not self.at_eof:
            self.at_eof = True
            self._detach()
            self._on_eof()

    def _detach(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(ValueError, OSError, RuntimeError):
                self._loop.remove_reader(self._sock.fileno())
                self._loop.remove_writer(self._sock.fileno())
