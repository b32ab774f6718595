"""A terminal whose keys come one by one, and which is given back as it was. Knows keys; not what they do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Keys:
    """A context manager within a running event loop. Inside, the terminal shows `screen`, which is left and entered
    again around Ctrl-Z; `on_key` is called with every character typed, `leave` for signals that end a program."""

    def __init__(
        self,
        on_key: Callable[[str], None],
        *,
        leave: Callable[[], None],
        screen: AbstractContextManager[object],
    ) -> None:
        self._on_key = on_key
        self._leave = leave
        self._screen = screen
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        """None: nobody types."""
        self._before = None if self._fd is None else termios.tcgetattr(self._fd)

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _LEAVING:
            loop.add_signal_handler(number, self._leave)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._fd is not None:
            loop.add_reader(self._fd, self._read, self._fd)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (*_LEAVING, signal.SIGTSTP):
            loop.remove_signal_handler(number)
        if self._fd is not None:
            loop.remove_reader(self._fd)
        self._give_back()

    def _take(self) -> None:
        if self._fd is not None:
            tty.setcbreak(self._fd)
        self._screen.__enter__()

    def _give_back(self) -> None:
        self._screen.__exit__(None, None, None)
        if self._fd is not None and self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def _suspend(self) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _read(self, fd: int) -> None:
        try:
            typed = os.read(fd, 64)
        except OSError:  # the terminal was closed
            typed = b""
        if not typed:
            asyncio.get_running_loop().remove_reader(fd)
            self._leave()
        for character in typed.decode("utf-8", "replace"):
            self._on_key(character)
