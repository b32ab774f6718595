"""Shared memory in which every worker keeps its figures. One writer a cell; readers never lock.

A worker that is killed leaves its last figures behind, which is the point: what it held at the moment
of its death is read after it. A cell is a page, so only cells in use cost memory.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

CELL_BYTES = 4096
CELLS = 1024

_BEAT = struct.Struct("<d")
_FIGURES = struct.Struct("<QIII")
_TEXT_SIZE = struct.Struct("<H")
_FIGURES_AT = 8
_LABEL_SIZE_AT = _FIGURES_AT + _FIGURES.size
_LABEL_AT = _LABEL_SIZE_AT + 2
_LABEL_MAX = 256
_HELD_SIZE_AT = _LABEL_AT + _LABEL_MAX
_HELD_AT = _HELD_SIZE_AT + 2
_HELD_MAX = CELL_BYTES - _HELD_AT
_EMPTY = bytes(CELL_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a worker last said of itself. `beat_until`: monotonic time its loop vouched for."""

    beat_until: float = 0.0
    done: int = 0
    busy: int = 0
    slots: int = 0
    serving: bool = False
    label: str = ""
    held: tuple[str, ...] = ()


class Board:
    """All cells; the supervisor makes it, a zygote maps it from a descriptor, workers inherit it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, CELLS * CELL_BYTES)

    @classmethod
    def create(cls) -> Board:
        fd = _anonymous_file()
        os.ftruncate(fd, CELLS * CELL_BYTES)
        return cls(fd)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    def clear(self, cell: int) -> None:
        self._map[cell * CELL_BYTES : (cell + 1) * CELL_BYTES] = _EMPTY

    def writer(self, cell: int) -> CellWriter:
        return CellWriter(self._map, cell)

    def beat_until(self, cell: int) -> float:
        (until,) = _BEAT.unpack_from(self._map, cell * CELL_BYTES)
        return float(until)

    def read(self, cell: int) -> Figures:
        start = cell * CELL_BYTES
        done, busy, slots, serving = _FIGURES.unpack_from(self._map, start + _FIGURES_AT)
        held = self._text(start + _HELD_SIZE_AT, _HELD_MAX)
        return Figures(
            beat_until=self.beat_until(cell),
            done=done,
            busy=busy,
            slots=slots,
            serving=bool(serving),
            label=self._text(start + _LABEL_SIZE_AT, _LABEL_MAX),
            held=tuple(held.split("\n")) if held else (),
        )

    def _text(self, at: int, most: int) -> str:
        (size,) = _TEXT_SIZE.unpack_from(self._map, at)
        start = at + _TEXT_SIZE.size
        # A writer killed half-way leaves a torn text; it is for people, so it is shown as it is.
        return self._map[start : start + min(size, most)].decode(errors="replace")


class CellWriter:
    """The one writer of a cell. Every call is a memory copy, no system call."""

    def __init__(self, memory: mmap.mmap, cell: int) -> None:
        self._map = memory
        self._start = cell * CELL_BYTES

    def beat(self, until: float) -> None:
        _BEAT.pack_into(self._map, self._start, until)

    def label(self, text: str) -> None:
        self._text(_LABEL_SIZE_AT, text.encode()[:_LABEL_MAX])

    def figures(self, *, done: int, busy: int, slots: int, serving: bool) -> None:
        _FIGURES.pack_into(self._map, self._start + _FIGURES_AT, done, busy, slots, serving)

    def held(self, labels: Sequence[str]) -> None:
        self._text(_HELD_SIZE_AT, _fit(labels))

    def _text(self, at: int, data: bytes) -> None:
        start = self._start + at + _TEXT_SIZE.size
        self._map[start : start + len(data)] = data
        _TEXT_SIZE.pack_into(self._map, self._start + at, len(data))


def _fit(labels: Sequence[str]) -> bytes:
    data = "\n".join(labels).encode(errors="replace")
    if len(data) <= _HELD_MAX:
        return data
    kept = data[: _HELD_MAX - 32].rsplit(b"\n", 1)[0]
    left_out = len(labels) - kept.count(b"\n") - 1
    return kept + f"\n... {left_out} more".encode()


def _anonymous_file() -> int:
    """In memory on Linux, elsewhere a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("supervisor-board")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
