"""What a process is doing: tasks rendered inside it, threads as received from its faulthandler.

Faulthandler writes in C and needs no interpreter lock, so a process that hangs can still be asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

_QUIET_FOR_S = 0.2
_MOST_BYTES = 1 << 20


class StackPipe:
    """Logs in one piece what faulthandler writes. `read_fd` is not blocking, and is closed with this."""

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


def render_tasks(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return "\n".join(_render(task) for task in tasks)


def _render(task: asyncio.Task[Any]) -> str:
    frames = _frames(task.get_coro())
    stack = "".join(traceback.format_list(traceback.StackSummary.extract(frames)))
    return f"task {task.get_name()!r}\n{stack}".rstrip()


def _frames(awaitable: Any) -> list[tuple[FrameType, int]]:
    """Follow the chain of awaits: `Task.get_stack` stops at the outermost coroutine."""
    frames: list[tuple[FrameType, int]] = []
    while awaitable is not None and len(frames) < 100:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        frame = frame or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return frames
