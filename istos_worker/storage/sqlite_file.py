"""One SQLite file, used from one thread: opening, writing, healing, and plain words for what went wrong.

Knows nothing of asyncio. After a failure the connection is given up and the next call opens another, so the
file is usable again as soon as the medium is (crash-only).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import sqlite_schema as schema
from istos_worker.storage.ownership import OwnerLock
from istos_worker.storage.protocol import WriteBatch

T = TypeVar("T")

_FAILURES = (schema.WrongSchema, sqlite3.Error, OSError)
_READ_ONLY = "the file or its folder is read-only for this user"


class SQLiteFile:
    """`path` is absolute. Every method raises StorageUnavailableError naming it."""

    def __init__(self, path: str, *, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._lock = OwnerLock(path)
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._numbers: dict[str, int] = {}

    def open_queue(self, name: str) -> None:
        def open_in(db: sqlite3.Connection) -> None:
            self._numbers[name] = schema.queue_number(db, name)

        self._do(open_in)

    def notes(self, name: str) -> dict[str, bytes]:
        return self._do(lambda db: schema.select_notes(db, self._numbers[name]))

    def write(self, batches: Sequence[tuple[str, WriteBatch]]) -> None:
        """All batches, of queues that are open, in one transaction, synced."""
        statements = [
            statement
            for name, batch in batches
            for statement in schema.batch_statements(self._numbers[name], batch)
        ]

        def write_in(db: sqlite3.Connection) -> None:
            if len(statements) == 1:  # a transaction of its own, and the only wait for the GIL
                db.execute(*statements[0])
                return
            db.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                db.execute(sql, values)
            db.execute("COMMIT")

        self._do(write_in)

    def heal(self) -> None:
        """Opens the file again if need be."""
        self._do(lambda db: None)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[sqlite3.Cursor]:
        """All rows of the queue, through a connection of the calling thread's own; read under `told`."""
        with self.told():
            db = self._connect()
            try:
                found = schema.select_rows(db, self._numbers[name])
            except BaseException:
                db.close()
                raise
        try:
            yield found
        finally:
            db.close()

    def close(self) -> None:
        """Idempotent. Lets other processes own the file."""
        self._disconnect()
        self._lock.release()

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """No context managers here: after the wait for a sync each function is slow."""
        try:
            self._check_still_there()
            db = self._db or self._open()
            try:
                return work(db)
            except BaseException as error:
                if not _is_busy(error) or db.in_transaction:
                    # Not only a rollback: where a sync failed, the log may hold the whole batch, and would bring
                    # it back after a crash. Closing cuts the log to what was reported as written.
                    self._disconnect()
                raise
        except _FAILURES as failure:
            raise self._in_words(failure) from failure

    def _open(self) -> sqlite3.Connection:
        if self._identity is None:
            _make_folder(os.path.dirname(self.path))
            self._check_writable()
        self._lock.acquire()
        db = self._connect()
        try:
            schema.prepare_connection(db)
            _lay_out(f"{self.path}-wal")
            for name in self._numbers:
                self._numbers[name] = schema.queue_number(db, name)
        except BaseException:
            db.close()
            raise
        self._db = db
        self._identity = _identity(self.path)
        return db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        db.text_factory = bytes
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.rollback()
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _check_writable(self) -> None:
        """SQLite opens a read-only file without a word, and fails at the first write."""
        effective = os.access in os.supports_effective_ids
        if os.path.exists(self.path) and not os.access(self.path, os.W_OK, effective_ids=effective):
            raise StorageUnavailableError(f"sqlite file {self.path}: {_READ_ONLY}")

    def _check_still_there(self) -> None:
        """SQLite would go on writing to a file that has lost its name, and create one that is missing."""
        if self._identity is None:
            return
        found = _identity(self.path)
        if found != self._identity:
            what = "was removed" if found is None else "was replaced by another"
            raise StorageUnavailableError(
                f"sqlite file {self.path} {what} while in use; put it back, or restart the owner to begin anew"
            )

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Turns what SQLite and the system raise into StorageUnavailableError."""
        try:
            yield
        except _FAILURES as failure:
            raise self._in_words(failure) from failure

    def _in_words(self, failure: Exception) -> StorageUnavailableError:
        match failure:
            case sqlite3.Error():
                reason = f": {_reason(failure, self.path, self._busy_timeout_s)}"
            case OSError():
                reason = f": {failure.strerror or failure} ({failure.filename or 'file'})"
            case _:
                reason = f" cannot be used: {failure}"
        return StorageUnavailableError(f"sqlite file {self.path}{reason}")


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _name_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _name_of(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _reason(error: sqlite3.Error, path: str, busy_timeout_s: float) -> str:
    name = _name_of(error)
    if _is_busy(error):
        return f"locked by another process for more than {busy_timeout_s:g} s"
    if name == "SQLITE_FULL":
        return "the disk is full"
    if name.startswith("SQLITE_READONLY"):
        return _READ_ONLY
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"damaged, or no SQLite database ({error}); restore it from a copy, or move it away"
    if name.startswith("SQLITE_CANTOPEN"):
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            return "cannot be opened: it is a folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"cannot be opened: no permission to write in the folder {folder}"
        return "cannot be opened: no permission, or the file system refuses it"
    if name.startswith("SQLITE_IOERR"):
        return f"the disk failed or is at its limit ({error}, {name})"
    return f"{error} ({name})" if name else str(error)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lay_out(log: str) -> None:
    """Gives the log all its blocks, in zeros, which are no part of it: a sync of the first commits then has no file
    size to write either, which takes as long as their bytes. Not where room is scarce."""
    with contextlib.suppress(OSError), open(log, "ab", buffering=0) as file:
        missing, room = schema.LOG_BYTES - file.tell(), os.fstatvfs(file.fileno())
        if missing > 0 and room.f_bavail * room.f_frsize > 16 * missing:
            file.write(bytes(missing))
            os.fsync(file.fileno())


def _make_folder(folder: str) -> None:
    """Creates what is missing, durably: a new folder's name is synced in its parent."""
    missing = []
    while not os.path.isdir(folder) and (parent := os.path.dirname(folder)) != folder:
        missing.append(folder)
        folder = parent
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        fd = os.open(os.path.dirname(folder), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
