"""From threads that are not ours to the event loop. Does not import zenoh."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """A deque from Zenoh's threads to the loop, with at most one wake-up pending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._woken = False

    def __call__(self, item: T) -> None:
        self._items.append(item)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to care
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # The flag falls before the items are taken, so an item that comes in between wakes us again.
        self._woken = False
        items: list[T] = []
        with contextlib.suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        if items:
            self._take(items)
