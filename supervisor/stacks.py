"""Where a process's asyncio tasks are waiting, as text. (Threads: faulthandler, in C, needs no GIL.)"""

from __future__ import annotations

import asyncio
import traceback
from types import FrameType
from typing import Any


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
