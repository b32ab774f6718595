"""Log lines of a fleet's processes on one stderr: text or JSON, each line whole. Knows records, not jobs.

Several processes share the pipe. A write of up to PIPE_BUF bytes is atomic (pipe(7)); a longer one may be cut
into by another process, so every line is written under a POSIX lock, which the kernel drops when its holder
dies. A stopped holder must not silence the rest: after a second the line is written without the lock.
Lines are written by a thread of their own, and dropped and counted when nobody reads, or the disk is full: logging
never blocks, and comes back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

CAPACITY = 10_000
_LOST = "%d log lines were lost: nobody read them in time, or there was no room for them"
_NOBODY_IS_LEFT = (errno.EPIPE, errno.EBADF)
_LOCK_PATIENCE_S = 1.0
_CLOSE_PATIENCE_S = 1.0
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "process_name",
    "fields",
}

_SHOWN_IN_TEXT = ("queue", "job_id", "correlation_id")


class TextFormatter(logging.Formatter):
    """`2026-11-29T10:00:00.123Z INFO worker 3: text queue=... job_id=...`."""

    process = ""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process_name)s: %(message)s%(fields)s")

    def format(self, record: logging.LogRecord) -> str:
        record.process_name = self.process
        record.fields = ""
        if getattr(record, "job_id", None) is not None:
            known = ((name, getattr(record, name, None)) for name in _SHOWN_IN_TEXT)
            record.fields = "".join(f" {name}={value}" for name, value in known if value is not None)
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the base's
        return timestamp(record)


def timestamp(record: logging.LogRecord) -> str:
    """UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the record's extra fields; what JSON cannot carry is shown as its repr."""

    process = ""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self.process,
            "pid": record.process,
            "message": _text(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        for name, value in vars(record).items():
            if name not in _PLAIN and name not in line and value is not None:
                line[name] = value
        return _dumps(line)


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as wrong:  # the application's arguments: a bad format string must not lose the line
        return f"{record.msg} {record.args!r} ({wrong!r})"


def _dumps(line: dict[str, Any]) -> str:
    import orjson  # a megabyte, with what it loads: a supervisor that writes text does without

    options = orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(line, default=_shown, option=options).decode()
    except (orjson.JSONEncodeError, RecursionError):  # lone surrogates, integers past 64 bits, cycles
        return orjson.dumps({_safe(name): _safe(value) for name, value in line.items()}).decode()


def _safe(value: object) -> object:
    if isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    text = value if isinstance(value, str) else _shown(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as failed:  # the application's own: it must not lose the line
        return f"<{type(value).__name__} that cannot be shown: {type(failed).__name__}>"


class LineWriter(logging.Handler):
    """Writes whole lines to a file descriptor from a thread of its own."""

    def __init__(self, fd: int, *, lock: str | None = None, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._fd = fd
        # Only a pipe or a socket is written in pieces; files and terminals have the kernel's own lock.
        mode = os.fstat(fd).st_mode
        needs_lock = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._lock_fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC) if lock is not None and needs_lock else None
        self._lines: deque[bytes] = deque()
        self._capacity = capacity
        self.lost = 0
        """Lines dropped so far because nobody read them in time, or there was no room for them."""
        self._lost_told = 0
        self._is_cut = False
        """The last line written has no end: the next one begins with a newline."""
        self._writes_since = math.inf
        """When the line that is being written was begun."""
        self._changed = threading.Event()
        self._written = threading.Event()
        self._is_ended = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a formatter's failure is reported the standard way, and logging goes on
            self.handleError(record)
            return
        if len(self._lines) >= self._capacity:
            self.lost += 1
            return
        self._lines.append(line.encode("utf-8", "backslashreplace") + b"\n")
        self._changed.set()
        self._begin()

    def _begin(self) -> None:
        """The thread, with the first line: a worker that has nothing to say does without. Logging holds a lock here."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="log-writer", daemon=True)
            # Where the system has no thread left, the line waits for the next one.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def flush(self, patience_s: float = _CLOSE_PATIENCE_S) -> None:
        """Waits until all lines are written, at most so long: not at all for a reader that has been asleep longer."""
        deadline = time.monotonic() + patience_s
        while self._lines and self._thread is not None and self._thread.is_alive():
            if time.monotonic() > min(deadline, self._writes_since + patience_s):
                return
            self._written.clear()
            self._changed.set()
            self._written.wait(0.05)

    def close(self) -> None:
        """To logging this is its end; but an application that configures logging anew has every handler closed, also
        those that stay attached, and they still have to write."""
        self.flush()
        super().close()

    def end(self) -> None:
        self.close()
        self._is_ended = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(0.2)

    def _work(self) -> None:
        while not self._is_ended or self._lines:
            self._changed.wait()
            self._changed.clear()
            while self._lines:
                # It leaves the deque when it is written, so that flush() knows.
                self._writes_since = time.monotonic()
                try:
                    self._write_locked(self._lines[0])
                except OSError as failed:
                    if failed.errno in _NOBODY_IS_LEFT:
                        return
                    self.lost += 1
                    self._lines.popleft()
                    continue
                finally:
                    self._writes_since = math.inf
                self._lines.popleft()
                self._report_lost()
            self._written.set()

    def _report_lost(self) -> None:
        if self.lost > self._lost_told and len(self._lines) < self._capacity // 2:
            lost, self._lost_told = self.lost - self._lost_told, self.lost
            record = logging.makeLogRecord(
                {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
                | {"msg": _LOST, "args": (lost,)}
            )
            self.emit(record)

    def _write_locked(self, line: bytes) -> None:
        """Raises OSError."""
        locked = self._lock_fd is not None and _lock(self._lock_fd)
        view = memoryview(b"\n" + line if self._is_cut else line)
        try:
            while view:
                view = view[_write_some(self._fd, view) :]
                self._is_cut = bool(view)
        finally:
            if locked and self._lock_fd is not None:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_UN)


def _lock(fd: int) -> bool:
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    pause_s = 0.0005
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        else:
            return True


def _write_some(fd: int, data: memoryview) -> int:
    try:
        return os.write(fd, data)
    except BlockingIOError:  # somebody made the shared pipe non-blocking
        select.select([], [fd], [], 1.0)
        return 0


class Logs:
    """Where the log records of a process go: to stderr, as text or JSON. Made in a process that is to be forked, and
    kept in each that comes of it.

    An application that has configured the root logger keeps its handlers in text mode. In JSON mode those that
    write to stdout or stderr are replaced: every line must parse.
    """

    def __init__(
        self,
        *,
        level: str = "info",
        format_: str = "text",
        lock: str | None = None,
        filters: Sequence[logging.Filter] = (),
    ) -> None:
        is_json = format_ == "json"
        self._formatter = JsonFormatter() if is_json else TextFormatter()
        self._writer = LineWriter(2, lock=lock)
        self._writer.setFormatter(self._formatter)
        for each in filters:
            self._writer.addFilter(each)
        self._carriers = _carriers(is_json=is_json)
        for logger in self._carriers:
            logger.setLevel(level.upper())
        logging.captureWarnings(True)

    @contextlib.contextmanager
    def kept(self, process: str) -> Iterator[LineWriter]:
        """Until the end of the block; `process` is its name in each line."""
        self._formatter.process = process
        for logger in self._carriers:
            logger.addHandler(self._writer)
        try:
            yield self._writer
        finally:
            self._writer.end()
            for logger in self._carriers:
                logger.removeHandler(self._writer)


def _carriers(*, is_json: bool) -> list[logging.Logger]:
    """The root logger, or only our own where the application has configured the root."""
    root = logging.getLogger()
    if is_json:
        for handler in [one for one in root.handlers if _is_terminal(one)]:
            root.removeHandler(handler)
    if not root.handlers:
        return [root]
    own = [logging.getLogger(name) for name in ("istos_worker", "supervisor")]
    for logger in own:
        logger.propagate = False
    return own


def _is_terminal(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stdout, sys.stderr)
