"""Log lines that never block the process that writes them: a pipe nobody reads must not stop a fleet."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Iterator

_CLOSE_WITHIN_S = 1.0
_LOOK_EVERY_S = 0.002


class ShieldedHandler(logging.Handler):
    """Formats at once, writes from a daemon thread; beyond `capacity` waiting lines, counts the lost.

    The thread uses the descriptor itself, not `sys.stderr`: a thread that hangs in a buffered
    writer's lock would make the interpreter's shutdown abort.
    """

    def __init__(self, fd: int = 2, *, capacity: int = 10_000) -> None:
        super().__init__()
        self._fd = fd
        self._capacity = capacity
        self._lines: collections.deque[bytes] = collections.deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._gave_up = False
        self.lost = 0
        self._lost_told = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode(errors="replace") + b"\n"
        except Exception:
            self.handleError(record)
            return
        if len(self._lines) >= self._capacity:
            self.lost += 1
            return
        self._lines.append(line)
        self._start()
        self._wake.set()

    def flush(self) -> None:
        """Waits a second at most, and only once for a pipe that is not read."""
        give_up_at = time.monotonic() + _CLOSE_WITHIN_S
        while self._lines and not self._gave_up:  # a line is there until it is written
            self._gave_up = time.monotonic() > give_up_at
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        self.flush()
        super().close()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_forever, name="log writer", daemon=True)
            self._thread.start()

    def _write_forever(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lines:
                self._write(self._lines[0])
                self._tell_lost()
                self._lines.popleft()  # last: flush() waits until there is none

    def _tell_lost(self) -> None:
        if self.lost > self._lost_told and not len(self._lines) > 1:
            new, self._lost_told = self.lost - self._lost_told, self.lost
            record = logging.LogRecord(
                __name__, logging.WARNING, __file__, 0, "%d log lines were lost", (new,), None
            )
            self._write(self.format(record).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._fd, line) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
            except OSError:
                return  # closed, or a full disk: nobody can be told


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """A handler for the package's loggers if the program has configured none; all is written when this ends."""
    logger = logging.getLogger("supervisor")
    if logger.hasHandlers():
        yield
        return
    handler = ShieldedHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        handler.close()
