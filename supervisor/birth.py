"""From fork to the application's own code: what a new worker does first, in order."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from supervisor import early, prctl
from supervisor.berth import Berth
from supervisor.board import Board
from supervisor.link import WorkerLink
from supervisor.recorder import PARENT_DIED, Recorder
from supervisor.titles import set_title


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one new worker gets from its zygote."""

    berth: Berth
    link_fd: int
    stacks_fd: int
    parent_pid: int


def live_as_worker(place: Place, *, board: Board, child: Callable[[WorkerLink], int]) -> int:
    """Runs in the forked process, with the fleet's signals still blocked; returns the exit code."""
    berth, recorder = place.berth, Recorder()
    recorder.install()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    faulthandler.register(signal.SIGUSR1, file=place.stacks_fd, all_threads=True)
    prctl.signal_on_parent_death(PARENT_DIED)
    early.release_signals()
    random.seed()
    gc.enable()
    set_title(berth.name, f"worker {berth.slot} gen {berth.generation} [starting]")
    link = WorkerLink(
        berth, socket.socket(fileno=place.link_fd), cell=board.writer(berth.cell), recorder=recorder
    )
    link.knows_parent(place.parent_pid)
    return _run(child, link)


def _run(child: Callable[[WorkerLink], int], link: WorkerLink) -> int:
    try:
        return child(link)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException:  # the application's code; whatever it is, this process ends of it
        traceback.print_exc()
        return 1
    finally:
        _say_goodbye()


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _say_goodbye() -> None:
    """What interpreter shutdown would do, without joining threads that will not stop."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
