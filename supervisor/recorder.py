"""Signals of a worker: recorded in the handler, read in the loop."""

from __future__ import annotations

import collections
import contextlib
import signal
import time
from collections.abc import Callable
from types import FrameType

from supervisor.early import handle

PARENT_DIED = signal.SIGURG  # ignored by default: harmless to a process that has no handler yet
RECORDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, PARENT_DIED)
SWALLOWED = (signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)


class Recorder:
    """`wake` is called after a signal was recorded; it must be safe inside a signal handler."""

    def __init__(self) -> None:
        self._seen: collections.deque[tuple[int, float]] = collections.deque(maxlen=100)
        self.wake: Callable[[], object] | None = None
        self.on_parent_death: Callable[[], None] | None = None

    def install(self) -> None:
        for signum in RECORDED:
            handle(signum, self._record)
        swallow_signals(SWALLOWED)

    def take(self) -> list[tuple[int, float]]:
        taken = []
        while self._seen:
            taken.append(self._seen.popleft())
        return taken

    def _record(self, signum: int, _frame: FrameType | None) -> None:
        self._seen.append((signum, time.monotonic()))
        if signum == PARENT_DIED and self.on_parent_death is not None:
            self.on_parent_death()
        if self.wake is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self.wake()


def swallow_signals(signums: tuple[int, ...]) -> None:
    """A handler that does nothing, not SIG_IGN: programs this process execs get the default back."""
    for signum in signums:
        handle(signum, _nothing)


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    return None
