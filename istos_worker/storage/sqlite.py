"""Queues in a SQLite file: synced before a commit returns, one file for any number of queues (docs/storage.md).

The file is opened with its first queue and closed with its last. One process at a time owns a file.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage.protocol import Row, WriteBatch
from istos_worker.storage.sqlite_writer import FileWriter, borrow

_CHUNK_ROWS = 1000
_CHUNK_BYTES = 1 << 20


class SQLiteStorage:
    """`path` may be relative. `busy_timeout_s`: how long a write waits for a foreign lock before it fails.
    `writes_in_loop`: the event loop may wait for a write, since it serves nobody but the queues (a medium that is
    slow is still written to by a thread)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 2.0,
        writes_in_loop: bool = False,
    ) -> None:
        self.path = os.path.abspath(path)
        self.writes_in_loop = writes_in_loop
        self._busy_timeout_s = busy_timeout_s
        self._queues: weakref.WeakSet[SQLiteQueue] = weakref.WeakSet()

    async def open_queue(self, name: str) -> SQLiteQueue:
        writer = borrow(self.path, name, busy_timeout_s=self._busy_timeout_s)
        try:
            await writer.call(lambda: writer.file.open_queue(name))
        except BaseException:
            writer.abandon(name)
            raise
        medium = SQLiteQueue(writer, name, writes_in_loop=self.writes_in_loop)
        self._queues.add(medium)
        return medium

    async def aclose(self) -> None:
        """Closes the queues opened here. Idempotent."""
        for medium in list(self._queues):
            await medium.aclose()


class SQLiteQueue:
    """A QueueMedium. Garbage collection closes one that was forgotten."""

    is_durable = True

    def __init__(self, writer: FileWriter, name: str, *, writes_in_loop: bool) -> None:
        self._writer = writer
        self._name = name
        self._in_loop = writes_in_loop
        self._release = weakref.finalize(self, writer.abandon, name)
        self._release.atexit = False

    async def notes(self) -> dict[str, bytes]:
        self._check_open()
        return await self._writer.call(lambda: self._writer.file.notes(self._name))

    async def rows(self) -> AsyncIterator[Sequence[Row]]:
        """Read in the caller's thread: sqlite3 gives up the GIL for every row, and another thread would get it
        back only when the event loop rests. A chunk blocks the loop for one or two milliseconds."""
        self._check_open()
        file = self._writer.file
        await self._writer.call(file.heal)
        with file.reading(self._name) as found:
            while chunk := self._chunk(found):
                yield chunk

    def _chunk(self, found: Iterable[tuple[int, bytes, bytes | None]]) -> list[Row]:
        chunk: list[Row] = []
        size = 0
        with self._writer.file.told():
            for seq, head, body in found:
                if body is None:
                    raise sqlite3.DatabaseError(f"the body of row {seq} of queue {self._name!r} is missing")
                chunk.append(Row(seq, head, body))
                size += len(body)
                if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                    break
        return chunk

    async def commit(self, batch: WriteBatch) -> None:
        self._check_open()
        if batch:
            await self._writer.write(self._name, batch)

    def commit_now(self, batch: WriteBatch) -> bool:
        """See QueueMedium."""
        self._check_open()
        return self._in_loop and self._writer.write_now(self._name, batch)

    async def aclose(self) -> None:
        if self._release.detach() is not None:
            await self._writer.give_back(self._name)

    def _check_open(self) -> None:
        if not self._release.alive:
            raise StorageUnavailableError(
                f"queue {self._name!r} in sqlite file {self._writer.file.path} was closed"
            )
