"""The event loop of our processes: uvloop where it is installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)
_OWNER_THRESHOLD = 20_000
"""New objects between two looks of the garbage collector. Jobs form no cycles, and are many: Python's 700 are
reached every few jobs."""


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_owner_in_loop(main: Coroutine[Any, Any, T]) -> T:
    """For a process that only owns queues."""
    gc.freeze()  # all that was imported is here to stay
    gc.set_threshold(_OWNER_THRESHOLD, *gc.get_threshold()[1:])
    return run_in_loop(main)


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, but it joins no threads at the end: a handler's thread that does not stop must not keep the
    process, whose jobs have been handed back, from leaving."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    running = loop.create_task(main)
    try:
        while True:
            try:
                return loop.run_until_complete(running)
            except BaseException as broken:
                if running.done():
                    raise
                # A task that a handler started was left by SystemExit, or it stopped the loop: this breaks the loop,
                # but is the business of whoever awaits that task, not of the jobs beside it.
                log.error("a task ended the event loop by %r; it goes on", broken)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
