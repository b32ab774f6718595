"""What a queue needs of a medium: read everything once, then atomic, durable batches. Knows no jobs.

A medium stores *rows* (a rising integer, a small `head` that changes, a `body` that never does) and *notes*
(a few small named values). Rows are keyed by the integer because every insert then touches the same page
(ARCHITECTURE.md, decision 2).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(slots=True)
class WriteBatch:
    """What one turn of the owner changed. All of it becomes durable, or none."""

    rows: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    """(sequence number, head, body), applied in this order: body None leaves the stored body as it is (and
    does nothing when there is no such row). A head is UTF-8 JSON text."""
    forgotten: list[int] = field(default_factory=list)
    """Sequence numbers whose rows go, applied after `rows`. May name rows that were never stored."""
    notes: dict[str, bytes | None] = field(default_factory=dict)
    """Named values; None deletes."""

    def __bool__(self) -> bool:
        return bool(self.rows or self.forgotten or self.notes)


@dataclass(frozen=True, slots=True)
class Row:
    seq: int
    head: bytes
    body: bytes


class QueueMedium(Protocol):
    """One queue's place in a medium. Every method raises StorageUnavailableError, with the file or the
    server and the reason in its message, when the medium fails; the medium heals itself when it can.

    A medium may have the attribute `may_skip_commits`; where it is there and true, nothing can ever be read
    back from the medium, and its holder may save itself the batches: `getattr(medium, "may_skip_commits", False)`.
    It may have a method `commit_now(batch)` that is commit() without an await, for a loop that can be held up a
    moment; it returns False, and has done nothing, when commit() is the way.
    """

    @property
    def is_durable(self) -> bool:
        """False when a restart of this process loses everything."""
        ...

    async def notes(self) -> dict[str, bytes]:
        """All notes. Called first, before rows()."""
        ...

    def rows(self) -> AsyncIterator[Sequence[Row]]:
        """All rows in rising order of seq, in chunks."""
        ...

    async def commit(self, batch: WriteBatch) -> None:
        """Atomic and durable on return. One caller at a time. After an error nothing of the batch is there; a
        cancelled commit may still happen, whole."""
        ...

    async def aclose(self) -> None:
        """Releases the queue. Idempotent."""
        ...


class Storage(Protocol):
    """A medium that holds any number of queues."""

    async def open_queue(self, name: str) -> QueueMedium:
        """Raises StorageUnavailableError; also when another owner holds the queue there."""
        ...

    async def aclose(self) -> None:
        """Closes the queues opened here. Idempotent; a queue may be opened again afterwards."""
        ...


@runtime_checkable
class StoragePlugin(Protocol):
    """The peer's interface: any object with these three can back a store (CONTRACT.md section 1)."""

    async def put(self, key: str, value: Any) -> None: ...

    async def get(self, key: str) -> Any | None: ...

    async def delete(self, key: str) -> None: ...
