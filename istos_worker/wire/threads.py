"""The threads that a session brings along: how many, whom they push aside, and none for longer than it is needed. Knows
Zenoh's variable for them; does not import zenoh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

T = TypeVar("T")

_THREADS = "ZENOH_RUNTIME"
_TWO_THREADS = (
    "(rx: (handover: app), acc: (handover: app), net: (handover: app), "
    "tx: (worker_threads: 1), app: (worker_threads: 1))"
)
"""A sixth less CPU a round trip than with Zenoh's own choice, and half a megabyte. Sending has a thread of its own,
since it never needs the GIL: keep-alives go out while a handler holds it. On one thread for everything, messages of 50
to 66 KB take a tenth of a second, now and then ten (docs/performance.md)."""


@contextlib.contextmanager
def few_threads() -> Iterator[None]:
    """Zenoh reads the variable once, when the first session is opened. The user's own value stays, and no child
    process inherits ours."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = _TWO_THREADS
    try:
        yield
    finally:
        del os.environ[_THREADS]


async def in_a_thread_of_its_own(work: Callable[[], T]) -> T:
    """As asyncio.to_thread, but the thread ends with the work: one that has been inside Zenoh keeps a seventh of a
    megabyte. What the work starts waits for a free core. Not a daemon: Python would end it at exit by unwinding it,
    which Zenoh's frames do not survive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        _leave_cores_to_others()
        settle: Callable[[], None]
        try:
            settle = partial(done.set_result, work())
        except BaseException as failed:  # whatever it is, it belongs to whoever waits
            settle = partial(done.set_exception, failed)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_if_awaited, done, settle)

    threading.Thread(target=run, name="zenoh-open").start()
    return await done


def _if_awaited(done: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not done.done():
        settle()


def _leave_cores_to_others() -> None:
    """What this thread starts inherits it: Zenoh's threads, when they wake for a message, wait for a core instead of
    taking one from a thread at work (SCHED_BATCH, sched(7)). Mostly that one holds the GIL, which they need next."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some sandboxes forbid it
            # 0: this thread, not the process (sched_setscheduler(2)).
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
