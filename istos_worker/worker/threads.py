"""Threads for handlers that are no coroutines: as many as slots, daemonic, so a stuck one cannot keep the
process from leaving. (concurrent.futures joins its threads at exit.)"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from istos_worker.worker.forked import end_if_copy


class _Call:
    __slots__ = ("error", "function", "future", "value")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as raised:  # the user's, whatever it is: the awaiting side decides
            self.error = raised
        end_if_copy(self.error)

    def settle(self) -> None:
        if self.future.done():
            return
        error = self.error
        if error is None:
            self.future.set_result(self.value)
        elif isinstance(error, (StopIteration, GeneratorExit)):  # a future cannot carry these two
            wrapped = RuntimeError(f"the function raised {type(error).__name__}")
            wrapped.__cause__ = error
            self.future.set_exception(wrapped)
        else:
            self.future.set_exception(error)


class SlotThreads:
    """Runs functions in threads, results back on the loop with one wake-up a batch."""

    def __init__(self, width: int, *, name: str, on_freed: Callable[[], None] | None = None) -> None:
        self._width = width
        self._name = name
        self._on_freed = on_freed
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._returned: deque[_Call] = deque()
        self._woken = False
        self._threads = 0
        self._open = 0
        self.stuck = 0
        """Threads whose caller has given them up."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result; it sees the caller's contextvars. A cancelled caller leaves the thread running
        and counts it as stuck until the function ends."""
        call = _Call(_in_copied_context(function), self._loop.create_future())
        self._open += 1
        if self._threads < min(self._open, self._width):
            self._spawn()
        self._calls.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            if call.future.cancelled():
                self.stuck += 1
            raise

    def _spawn(self) -> None:
        self._threads += 1
        name = f"{self._name}-{self._threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            self._returned.append(call)
            del call
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to care
                    self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        # The flag falls before the calls are taken, so a call that comes in between wakes us again.
        self._woken = False
        while self._returned:
            call = self._returned.popleft()
            self._open -= 1
            if call.future.cancelled():
                self.stuck -= 1
                if self._on_freed is not None:
                    self._on_freed()
            call.settle()

    def close(self) -> None:
        """Idle threads end now, busy ones with their function. Idempotent."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = self._width


def _in_copied_context(function: Callable[[], Any]) -> Callable[[], Any]:
    context = contextvars.copy_context()
    return lambda: context.run(function)
