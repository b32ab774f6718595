"""Chords: which members have finished, with what. Knows rows and indexes; not jobs or queues.

Each report is a row of its own, written with whatever else its turn wrote; when the barrier closes, one short row
replaces them all and keeps repeats recognisable. Results live until the continuation is enqueued: at once when the
owner enqueues it, with the closing member's ack when a peer's worker does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

import orjson

from istos_worker.queue.bodies import as_json
from istos_worker.queue.heads import CLOSED, FORMAT, REPORT
from istos_worker.queue.limits import MAX_CHORD_SIZE, MAX_KEY
from istos_worker.queue.records import Instant, InvalidChordError
from istos_worker.queue.timers import Deadlines, Horizon

OPEN_HAND_S: Final = 86400.0
"""How long the results of a barrier that a peer closed wait for the closing member's ack, at least."""


_NONE: Final = 0
_BYTES: Final = 1
_TEXT: Final = 2

Report = bytes | str | None
"""A member's result: bytes from an ack, or the text a peer's worker reported, base64 as a rule."""


def _as_bytes(report: Report) -> bytes | None:
    if not isinstance(report, str):
        return report
    try:
        return base64.b64decode(report, validate=True)
    except (binascii.Error, ValueError):
        return report.encode()


def _as_text(report: Report) -> str | None:
    return base64.b64encode(report).decode() if isinstance(report, bytes) else report


class Barrier:
    __slots__ = ("closed_by", "closed_row", "id", "number", "results", "rows", "size")

    def __init__(self, chord_id: str, size: int, number: int) -> None:
        self.id = chord_id
        self.size = size
        self.number = number
        self.results: dict[int, Report] = {}
        self.rows: list[int] = []
        self.closed_by: int | None = None
        self.closed_row = 0

    @property
    def is_closed(self) -> bool:
        return self.closed_by is not None

    @property
    def missing(self) -> list[int]:
        return [index for index in range(self.size) if index not in self.results]

    def body(self, given: bytes) -> bytes:
        """The continuation's body: the members' results in their order, and the callback's own input."""
        parts = [as_json(_as_bytes(self.results.get(index))) for index in range(self.size)]
        return b'{"results":[' + b",".join(parts) + b'],"input":' + as_json(given) + b"}"

    def texts(self) -> list[str | None]:
        """The results as the peer's wire carries them."""
        return [_as_text(self.results.get(index)) for index in range(self.size)]


class Barriers:
    __slots__ = ("_by_id", "_by_number", "_drop_row", "_fading", "_numbers", "_put_row", "_ttl_s")

    def __init__(
        self,
        put_row: Callable[[bytes, bytes], int],
        drop_row: Callable[[int], None],
        horizon: Horizon,
        *,
        ttl_s: float,
    ) -> None:
        self._put_row = put_row
        self._drop_row = drop_row
        self._ttl_s = ttl_s
        self._by_id: dict[str, Barrier] = {}
        self._by_number: dict[int, Barrier] = {}
        self._numbers = 0
        self._fading = Deadlines(horizon)

    def get(self, chord_id: str) -> Barrier | None:
        return self._by_id.get(chord_id)

    def ensure(self, chord_id: str, index: int, size: int) -> Barrier:
        """The chord's barrier. Raises InvalidChordError when the index does not fit."""
        if not 1 <= len(chord_id) <= MAX_KEY:
            raise InvalidChordError(f"chord_id must have 1 to {MAX_KEY} characters, got {len(chord_id)}")
        if not chord_id.isascii() and chord_id.encode("utf-8", "replace").decode() != chord_id:
            raise InvalidChordError(f"chord_id has half a character in it: {chord_id!r}")
        if not 0 < size <= MAX_CHORD_SIZE or not 0 <= index < size:
            raise InvalidChordError(f"chord report index {index} is outside size {size}")
        barrier = self._by_id.get(chord_id)
        if barrier is None:
            return self._new(chord_id, size)
        if index >= barrier.size:
            raise InvalidChordError(f"chord report index {index} is outside size {barrier.size}")
        return barrier

    def _new(self, chord_id: str, size: int) -> Barrier:
        self._numbers += 1
        barrier = Barrier(chord_id, size, self._numbers)
        self._by_id[chord_id] = self._by_number[self._numbers] = barrier
        return barrier

    def report(self, barrier: Barrier, index: int, result: Report) -> bool:
        """Counts a member once. True: this report completes the barrier, which its caller now closes."""
        if barrier.is_closed or index in barrier.results:
            return False
        barrier.results[index] = result
        form = _NONE if result is None else _TEXT if isinstance(result, str) else _BYTES
        head = orjson.dumps((FORMAT, REPORT, barrier.id, barrier.size, index, form))
        body = result.encode() if isinstance(result, str) else result or b""
        barrier.rows.append(self._put_row(head, body))
        return len(barrier.results) >= barrier.size

    def close(self, barrier: Barrier, index: int, now: Instant, *, keep_results: bool) -> None:
        """`keep_results`: somebody else enqueues the continuation and may have to ask for them again."""
        barrier.closed_by = index
        if barrier.closed_row:
            self._drop_row(barrier.closed_row)
        head = orjson.dumps((FORMAT, CLOSED, barrier.id, barrier.size, index, now.wall))
        barrier.closed_row = self._put_row(head, b"")
        if keep_results:
            self._fading.set(barrier.number, now.mono + max(self._ttl_s, OPEN_HAND_S))
        else:
            self.clear(barrier, now)

    def clear(self, barrier: Barrier, now: Instant) -> None:
        """The continuation is enqueued: only the barrier's name is still remembered, for repeats."""
        for seq in barrier.rows:
            self._drop_row(seq)
        barrier.rows = []
        barrier.results = {}
        self._fading.set(barrier.number, now.mono + self._ttl_s)

    def expire(self, now: float) -> None:
        while (number := self._fading.pop_due(now)) is not None:
            barrier = self._by_number.pop(number)
            del self._by_id[barrier.id]
            for seq in (*barrier.rows, barrier.closed_row):
                self._drop_row(seq)

    # reading back

    def load_report(self, fields: list[Any], seq: int, body: bytes) -> None:
        _, _, chord_id, size, index, form = fields
        barrier = self._by_id.get(chord_id) or self._new(chord_id, size)
        barrier.results[index] = None if form == _NONE else body.decode() if form == _TEXT else body
        barrier.rows.append(seq)

    def load_closed(self, fields: list[Any], seq: int, now: Instant) -> None:
        _, _, chord_id, size, index, closed_at = fields
        barrier = self._by_id.get(chord_id) or self._new(chord_id, size)
        barrier.closed_by = index
        barrier.closed_row = seq
        ttl_s = max(self._ttl_s, OPEN_HAND_S) if barrier.rows else self._ttl_s
        left_s = min(ttl_s, max(0.0, closed_at + ttl_s - now.wall))
        self._fading.set(barrier.number, now.mono + left_s)
