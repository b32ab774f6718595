"""A medium that lasts as long as the object: for tests, and for queues that may be lost. No I/O at all."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage.protocol import Row, WriteBatch

_CHUNK_ROWS = 2000


@dataclass(slots=True)
class _Content:
    rows: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)
    is_open: bool = False


class MemoryStorage:
    """Holds any number of queues, and the values of a StoragePlugin, until it is garbage.

    A queue opened again after its `aclose` is as it was left. With `may_skip_commits` the holder of a queue
    is told that nobody will look, so that it need not build batches (the attribute of the same name on the
    medium); a batch that is committed all the same is kept.
    """

    def __init__(self, *, may_skip_commits: bool = False) -> None:
        self._may_skip_commits = may_skip_commits
        self._queues: dict[str, _Content] = {}
        self._values: dict[str, Any] = {}
        self._media: weakref.WeakSet[MemoryQueue] = weakref.WeakSet()

    async def open_queue(self, name: str) -> MemoryQueue:
        content = self._queues.setdefault(name, _Content())
        if content.is_open:
            raise StorageUnavailableError(f"queue {name!r} in memory already has an owner in this process")
        content.is_open = True
        medium = MemoryQueue(content, may_skip_commits=self._may_skip_commits)
        self._media.add(medium)
        return medium

    async def aclose(self) -> None:
        """Closes the queues opened here; their content stays. Idempotent."""
        for medium in list(self._media):
            await medium.aclose()

    async def put(self, key: str, value: Any) -> None:
        self._values[key] = value

    async def get(self, key: str) -> Any | None:
        return self._values.get(key)

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)


class MemoryQueue:
    """A QueueMedium. Garbage collection closes one that was forgotten."""

    is_durable = False

    def __init__(self, content: _Content, *, may_skip_commits: bool) -> None:
        self.may_skip_commits = may_skip_commits
        self._content = content
        self._release = weakref.finalize(self, setattr, content, "is_open", False)

    async def notes(self) -> dict[str, bytes]:
        return dict(self._content.notes)

    async def rows(self) -> AsyncIterator[Sequence[Row]]:
        ordered = iter(sorted(self._content.rows.items()))
        while chunk := [Row(seq, head, body) for seq, (head, body) in islice(ordered, _CHUNK_ROWS)]:
            yield chunk

    async def commit(self, batch: WriteBatch) -> None:
        if not self._release.alive:
            raise StorageUnavailableError("the queue in memory was closed")
        rows = self._content.rows
        for seq, head, body in batch.rows:
            if body is not None:
                rows[seq] = (head, body)
            elif (stored := rows.get(seq)) is not None:
                rows[seq] = (head, stored[1])
        for seq in batch.forgotten:
            rows.pop(seq, None)
        for name, value in batch.notes.items():
            if value is None:
                self._content.notes.pop(name, None)
            else:
                self._content.notes[name] = value

    async def aclose(self) -> None:
        self._release()
