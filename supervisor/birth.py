"""From fork to the application's own code: what a new worker does first, in order."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable

from supervisor import early, prctl
from supervisor.link import WorkerLink
from supervisor.recorder import PARENT_DIED, Recorder

_OWN_PACKAGE = os.path.dirname(__file__)


def be_born(stacks_fd: int) -> Recorder:
    """Called in the forked process with the fleet's signals still blocked; they are recorded from now on."""
    recorder = Recorder()
    recorder.install()
    early.handle_by_default(signal.SIGCHLD)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)
    prctl.signal_on_parent_death(PARENT_DIED)
    early.release_signals()
    gc.enable()
    return recorder


def live(child: Callable[[WorkerLink], int], link: WorkerLink) -> int:
    """The exit code of the application's worker, whatever it does."""
    try:
        return child(link)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException as error:  # the application's code; whatever it is, this process ends of it
        # Told to the supervisor, not printed: eight workers failing alike are one traceback.
        link.last_words(user_traceback(error))
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
    flush_output()


def flush_output() -> None:
    """Also before a fork: what is buffered would come out once per process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def user_traceback(error: BaseException) -> str:
    """From the first frame that is neither ours nor the machinery's."""
    summary = traceback.TracebackException.from_exception(error)
    frames = list(summary.stack)
    while frames and _is_ours(frames[0].filename):
        frames.pop(0)
    summary.stack = traceback.StackSummary.from_list(frames)
    return "".join(summary.format()).rstrip()


def _is_ours(filename: str) -> bool:
    return (
        filename.startswith((_OWN_PACKAGE, "<frozen "))
        or "/importlib/" in filename
        or "/asyncio/" in filename
    )
