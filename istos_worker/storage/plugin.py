"""Queues in anything that can put, get and delete by key (the peer's storage plugins). Not atomic.

A batch becomes many calls, so a crash can leave part of one. Their order (see `commit`) makes that part harmless:
work may be done twice, nothing that was acknowledged is lost. The keys, for a queue `name`:

    queue:{name}:row:{seq}       the head            queue:{name}:bounds       which blocks and note slots exist
    queue:{name}:body:{seq}      the body            queue:{name}:live:{block} which rows a sparse block still has
    queue:{name}:note:{slot}     [name, value]

Plugins cannot list keys, and an index rewritten whole would cost more with every job held. So rows are found by
probing blocks of 1,000 sequence numbers, of which only the first and the last are written down; a block that has
become sparse gets a `live` record, rewritten each time the count of its rows has halved.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, TypeVar

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage.protocol import Row, StoragePlugin, WriteBatch

T = TypeVar("T")

_BLOCK_ROWS = 1000
_SPARSE_ROWS = 64
_SLOT_STEP = 16


class PluginStorage:
    """A Storage on top of a StoragePlugin. Knows only the owners of this object: two processes that own one
    queue through one database are not kept apart here."""

    def __init__(self, plugin: StoragePlugin) -> None:
        self._plugin = plugin
        self._open: dict[str, PluginQueue] = {}

    async def open_queue(self, name: str) -> PluginQueue:
        if (other := self._open.get(name)) is not None and not other.is_closed:
            raise StorageUnavailableError(
                f"queue {name!r} in {_kind(self._plugin)} already has an owner here"
            )
        medium = self._open[name] = PluginQueue(self._plugin, name)
        return medium

    async def aclose(self) -> None:
        """Closes the queues, not the plugin, which belongs to its maker."""
        for medium in self._open.values():
            await medium.aclose()


class PluginQueue:
    """A QueueMedium. After an error or a cancelled commit, what it knows of the medium is read again."""

    def __init__(self, plugin: StoragePlugin, name: str) -> None:
        self.is_durable = bool(getattr(plugin, "is_durable", True))
        self.is_closed = False
        self._plugin = plugin
        self._name = name
        self._index = _Index()
        self._is_known = False

    async def notes(self) -> dict[str, bytes]:
        index, notes = await self._read_notes()
        self._is_known = False
        self._index = index
        return notes

    async def rows(self) -> AsyncIterator[Sequence[Row]]:
        self._is_known = False
        index, _ = await self._read_notes()
        for block in range(index.low, index.high):
            chunk = await self._read_block(index, block)
            if chunk:
                index.blocks[block] = sum(1 << (row.seq % _BLOCK_ROWS) for row in chunk)
                yield chunk
        self._index = index
        self._is_known = True

    async def commit(self, batch: WriteBatch) -> None:
        if self.is_closed:
            raise StorageUnavailableError(f"queue {self._name!r} in {_kind(self._plugin)} was closed")
        if not self._is_known:
            async for _ in self.rows():
                pass
        self._is_known = False
        await self._write(batch)
        self._is_known = True

    async def aclose(self) -> None:
        self.is_closed = True

    async def _write(self, batch: WriteBatch) -> None:
        """New jobs, then notes (a job's continuation, a fence's high mark), then changed jobs, and only then what
        goes. A crash in between leaves a job that is done a second time, never one that is gone too early."""
        changed = []
        for seq, head, body in batch.rows:
            if body is None:
                changed.append((seq, head))
            else:
                await self._add(seq, head, body)
        for name, value in batch.notes.items():
            if value is not None:
                await self._put_note(name, value)
        for seq, head in changed:
            if self._index.has(seq):
                await self._put(f"row:{seq}", _to_text(head))
        for seq in batch.forgotten:
            if self._index.has(seq):
                await self._forget(seq)
        for name, value in batch.notes.items():
            if value is None and (slot := self._index.slots.pop(name, None)) is not None:
                await self._delete(f"note:{slot}")
                self._index.free_slots.append(slot)

    async def _add(self, seq: int, head: bytes, body: bytes) -> None:
        index, block = self._index, seq // _BLOCK_ROWS
        if block not in index.blocks:
            await self._open_block(block)
        await self._put(f"body:{seq}", _to_text(body))
        await self._put(f"row:{seq}", _to_text(head))
        index.add(seq)
        if block in index.sparse:
            await self._put(f"live:{block}", index.live(block))

    async def _open_block(self, block: int) -> None:
        index, top = self._index, self._index.high - 1
        await self._delete(f"live:{block}")  # of an earlier life of the block
        index.sparse.discard(block)
        if index.low <= block <= top:
            return
        index.widen(block)
        await self._put("bounds", index.bounds())
        if index.low <= top < block and index.count(top) <= _SPARSE_ROWS:
            await self._mark_sparse(top)

    async def _forget(self, seq: int) -> None:
        index, block = self._index, seq // _BLOCK_ROWS
        await self._delete(f"row:{seq}")
        await self._delete(f"body:{seq}")
        index.remove(seq)
        left = index.count(block)
        has_halved = left <= _SPARSE_ROWS and left & (left - 1) == 0
        if has_halved and block != index.high - 1:  # the last block still fills
            await self._mark_sparse(block)

    async def _mark_sparse(self, block: int) -> None:
        self._index.sparse.add(block)
        await self._put(f"live:{block}", self._index.live(block))
        if self._index.count(block) == 0:
            await self._raise_low()

    async def _raise_low(self) -> None:
        index, old = self._index, self._index.low
        index.low = min(index.blocks, default=index.high - 1)
        if index.low == old:
            return
        await self._put("bounds", index.bounds())
        for block in range(old, index.low):
            await self._delete(f"live:{block}")
            index.sparse.discard(block)

    async def _put_note(self, name: str, value: bytes) -> None:
        index = self._index
        slot = index.slots.get(name)
        if slot is None:
            if not index.free_slots:
                index.add_slots()
                await self._put("bounds", index.bounds())
            slot = index.free_slots.pop()
        await self._put(f"note:{slot}", [name, _to_text(value)])
        index.slots[name] = slot

    async def _read_notes(self) -> tuple[_Index, dict[str, bytes]]:
        index = _Index.from_bounds(await self._get("bounds"))
        notes = {}
        for slot in range(index.slot_count):
            found = await self._get(f"note:{slot}")
            if found is None:
                index.free_slots.append(slot)
            else:
                name, value = found
                index.slots[name] = slot
                notes[name] = _to_bytes(value)
        return index, notes

    async def _read_block(self, index: _Index, block: int) -> list[Row]:
        live = await self._get(f"live:{block}")
        if live is not None:
            index.sparse.add(block)
        offsets: Sequence[int] = range(_BLOCK_ROWS) if live is None else live
        rows = []
        for offset in offsets:
            seq = block * _BLOCK_ROWS + offset
            head = await self._get(f"row:{seq}")
            if head is not None:
                body = await self._get(f"body:{seq}")
                rows.append(Row(seq, _to_bytes(head), _to_bytes(body or "")))
        return rows

    async def _put(self, key: str, value: Any) -> None:
        await self._told(self._plugin.put(f"queue:{self._name}:{key}", value))

    async def _get(self, key: str) -> Any | None:
        return await self._told(self._plugin.get(f"queue:{self._name}:{key}"))

    async def _delete(self, key: str) -> None:
        await self._told(self._plugin.delete(f"queue:{self._name}:{key}"))

    async def _told(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except StorageUnavailableError:
            raise
        except Exception as error:  # the plugin is its user's code, and may raise anything
            raise StorageUnavailableError(
                f"{_kind(self._plugin)}: {type(error).__name__}: {error}"
            ) from error


class _Index:
    """Which rows and note slots exist, in memory: 1,000 rows are the bits of one int."""

    def __init__(self) -> None:
        self.low = 0  # blocks low <= b < high may hold rows
        self.high = 0
        self.blocks: dict[int, int] = {}
        self.sparse: set[int] = set()
        self.slots: dict[str, int] = {}
        self.free_slots: list[int] = []
        self.slot_count = 0

    @classmethod
    def from_bounds(cls, bounds: Any) -> _Index:
        index = cls()
        if bounds is not None:
            index.low, index.high, index.slot_count = bounds["low"], bounds["high"], bounds["slots"]
        return index

    def bounds(self) -> dict[str, int]:
        return {"low": self.low, "high": self.high, "slots": self.slot_count}

    def widen(self, block: int) -> None:
        is_empty = self.low == self.high
        self.low = block if is_empty else min(self.low, block)
        self.high = block + 1 if is_empty else max(self.high, block + 1)

    def has(self, seq: int) -> bool:
        return bool(self.blocks.get(seq // _BLOCK_ROWS, 0) >> (seq % _BLOCK_ROWS) & 1)

    def add(self, seq: int) -> None:
        block = seq // _BLOCK_ROWS
        self.blocks[block] = self.blocks.get(block, 0) | 1 << (seq % _BLOCK_ROWS)

    def remove(self, seq: int) -> None:
        block = seq // _BLOCK_ROWS
        left = self.blocks[block] & ~(1 << (seq % _BLOCK_ROWS))
        if left:
            self.blocks[block] = left
        else:
            del self.blocks[block]

    def count(self, block: int) -> int:
        return self.blocks.get(block, 0).bit_count()

    def live(self, block: int) -> list[int]:
        return list(_bits(self.blocks.get(block, 0)))

    def add_slots(self) -> None:
        self.free_slots += range(self.slot_count, self.slot_count + _SLOT_STEP)
        self.slot_count += _SLOT_STEP


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _to_text(value: bytes) -> str:
    """Plugins encode to JSON: text stays readable, all else (NUL too, which PostgreSQL refuses) is base64."""
    if b"\0" not in value:
        try:
            return "u:" + value.decode()
        except UnicodeDecodeError:
            pass
    return "b:" + base64.b64encode(value).decode()


def _to_bytes(text: str) -> bytes:
    return text[2:].encode() if text.startswith("u:") else base64.b64decode(text[2:])


def _kind(plugin: StoragePlugin) -> str:
    return f"storage plugin {type(plugin).__name__}"
