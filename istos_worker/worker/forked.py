"""Handlers that fork. A child that comes back out of its handler would be a second worker on this one's sockets:
it ends there instead. Knows the process it is in; no jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTTIN", "SIGTTOU", "SIGURG")


class _Here:
    """Whether this process is the worker itself, or a copy that a handler made of it."""

    is_copy = False
    has_workers = False
    gives_signals_back = False


def worker_lives_here(*, gives_signals_back: bool = False) -> None:
    """From now on children of this process are copies of a worker. `gives_signals_back`: the worker's handlers of
    the fleet's signals are not theirs, so that `Process.terminate()` ends them."""
    _Here.is_copy = False
    _Here.has_workers = True
    _Here.gives_signals_back = _Here.gives_signals_back or gives_signals_back


def end_if_copy(raised: BaseException | None = None) -> None:
    """To be called where a handler has ended. In a copy it does not return."""
    if _Here.is_copy:
        _end(raised)


def _end(raised: BaseException | None) -> None:
    code = 0 if raised is None else 1
    if isinstance(raised, SystemExit):
        code = raised.code if isinstance(raised.code, int) else 0 if raised.code is None else 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def _in_child() -> None:
    if not _Here.has_workers:
        return  # a zygote forks workers
    _Here.is_copy = True
    if _Here.gives_signals_back:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in _SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)


os.register_at_fork(after_in_child=_in_child)
