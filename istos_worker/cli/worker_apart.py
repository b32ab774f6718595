"""Reads a command line in a forked process that ends with it. What that takes (click, tables, the messages for every
mistake) would stay with a supervisor for life. Knows processes; not what is read.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from istos_worker.observability.output import output_failed

if TYPE_CHECKING:
    from istos_worker.cli.worker_fleet import Fleet
    from istos_worker.cli.worker_run import HandOver


def read_apart(read: Callable[[HandOver], int]) -> Fleet | int | None:
    """What `read` handed over there; or, where it handed over nothing, the exit code: it has said why."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _tell(theirs, read)
    os.close(theirs)
    with open(ours, "rb") as told:
        handed_over = told.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        name = signal.Signals(-code).name
        print(f"istos-worker: {name} ended the process that reads the options", file=sys.stderr)
        return 1
    if code or not handed_over:
        return code
    fleet: Fleet | None = pickle.loads(handed_over)  # by a process of our own
    return fleet


def _tell(fd: int, read: Callable[[HandOver], int]) -> NoReturn:
    code = 1
    try:
        with open(fd, "wb") as telling:
            code = read(lambda fleet: pickle.dump(fleet, telling))
        if sys.stdout is not None:  # it may have been closed from the start
            sys.stdout.flush()
    except OSError as failed:
        code = output_failed("istos-worker", failed)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
