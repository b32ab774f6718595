"""`--reload`: watches the source files under the current directory in a process of its own, since watchfiles is
neither small nor single-threaded. Knows signals, not jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

_WATCH = """
import os, signal, sys
from watchfiles import PythonFilter, watch
pid = int(sys.argv[1])
for _ in watch(".", watch_filter=PythonFilter(), raise_interrupt=False, yield_on_timeout=True, rust_timeout=1000):
    if os.getppid() != pid:
        break
    if _:
        os.kill(pid, signal.SIGHUP)
"""


@contextlib.contextmanager
def hup_on_change(pid: int) -> Iterator[None]:
    """Sends HUP to `pid`, this process's own, whenever a Python file changes. Ends with it, however it ends."""
    watcher = subprocess.Popen(
        [sys.executable, "-c", _WATCH, str(pid)], stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            watcher.kill()
        with contextlib.suppress(ChildProcessError):  # the supervisor reaps what it finds
            watcher.wait()


def rerun_on_change(arguments: Sequence[str]) -> int:
    """`--solo --reload`: runs this command again, without `--reload`, at every change."""
    from watchfiles import PythonFilter, watch

    from supervisor.early import release_signals

    release_signals()
    command = [
        sys.executable,
        "-m",
        "istos_worker.cli.worker",
        *(word for word in arguments[1:] if word != "--reload"),
    ]
    environ = {name: value for name, value in os.environ.items() if name != "ISTOS_WORKER_RELOAD"}
    child = subprocess.Popen(command, env=environ)
    try:
        for _ in watch(".", watch_filter=PythonFilter(), yield_on_timeout=True, rust_timeout=500):
            if child.poll() is not None and not _:
                return child.returncode
            if _:
                child.send_signal(signal.SIGTERM)
                child.wait()
                child = subprocess.Popen(command, env=environ)
    except KeyboardInterrupt:
        pass
    return child.wait()
