"""Receives what faulthandler writes in another process, and logs it in one piece."""

from __future__ import annotations

import asyncio
import logging
import os

log = logging.getLogger(__name__)

_QUIET_FOR_S = 0.2
_MOST_BYTES = 1 << 20


class StackPipe:
    """`read_fd` is not blocking, and is closed with this."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_fd: int, *, who: str) -> None:
        self._read_fd = read_fd
        self._loop = loop
        self._who = who
        self._text = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(self._read_fd, self._read)

    def close(self) -> None:
        if self._read_fd >= 0:
            self._read()
        self._log()
        self._stop_reading()

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._stop_reading()
        elif len(self._text) < _MOST_BYTES:
            self._text += data
        if self._timer is None and self._text:
            self._timer = self._loop.call_later(_QUIET_FOR_S, self._log)

    def _stop_reading(self) -> None:
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1

    def _log(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._text:
            text = self._text.decode(errors="replace").rstrip()
            self._text.clear()
            log.warning("stacks of %s:\n%s", self._who, text, extra={"of": self._who, "stacks": text})
