"""How a job tells that it ran: one 32-byte append to a shared file. Knows no queue and no phase.

Each record is written by a single `write(2)` on an O_APPEND descriptor, which Linux keeps whole and in
order between processes. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import struct
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

FILE_VARIABLE = "BENCH_RECORDS"
_LAYOUT = struct.Struct("<qqqii")
SIZE_BYTES = _LAYOUT.size


class Kind(IntEnum):
    DONE = 0
    """A job without duration ran."""
    STARTED = 1
    FINISHED = 2
    CANCELLED = 3


class Record(NamedTuple):
    at_ns: int
    waited_ns: int
    """From the producer's call to the start of the job; 0 where the job carries no time of sending."""
    job: int
    kind: int
    pid: int


class Recorder:
    """The writing side, opened at the first record so that a fork inherits nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, kind: Kind, job: int, *, waited_ns: int = 0) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._descriptor, _LAYOUT.pack(time.monotonic_ns(), waited_ns, job, int(kind), os.getpid()))


class Records:
    """The reading side."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        try:
            return self.path.stat().st_size // SIZE_BYTES
        except FileNotFoundError:
            return 0

    def read(self, *kinds: Kind) -> list[Record]:
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: len(data) // SIZE_BYTES * SIZE_BYTES]
        records = (Record(*fields) for fields in _LAYOUT.iter_unpack(whole))
        return [record for record in records if not kinds or record.kind in kinds]

    def clear(self) -> None:
        """Writers go on at the new end, since they append."""
        if self.path.exists():
            os.truncate(self.path, 0)
