"""The ids of finished jobs, remembered for a while: a repeated enqueue or ack is recognised by them.

Ids that look random belong to producers whose retries come within minutes; they are kept ten minutes, and only the
newest 200,000 of them. Chosen and derived ids are kept for the results' time to live. All ids that finish in one
turn become one row each way, so remembering costs a finished job next to nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from istos_worker.queue.heads import FORMAT, TOMBSTONES
from istos_worker.queue.records import Instant
from istos_worker.queue.timers import Horizon

RANDOM_TTL_S: Final = 600.0
MAX_RANDOM: Final = 200_000
MAX_CHOSEN: Final = 1_000_000
_SLACK_S: Final = 1.0
_RANDOM_ID = re.compile(r"[0-9a-f]{32}(?:\.\d{1,4})?")

PutRow = Callable[[bytes, bytes], int]
DropRow = Callable[[int], None]


class _Grave(NamedTuple):
    due: float
    seq: int
    ids: list[str]


class _Shelf:
    """Ids with one time to live, oldest first."""

    __slots__ = ("capacity", "fresh", "graves", "held", "is_random", "ttl_s")

    def __init__(self, *, ttl_s: float, capacity: int, is_random: bool) -> None:
        self.ttl_s = ttl_s
        self.capacity = capacity
        self.is_random = is_random
        self.held = 0
        self.graves: deque[_Grave] = deque()
        self.fresh: list[str] = []


class Tombstones:
    __slots__ = ("_chosen", "_drop_row", "_fences", "_horizon", "_now", "_put_row", "_random")

    def __init__(self, put_row: PutRow, drop_row: DropRow, horizon: Horizon, *, chosen_ttl_s: float) -> None:
        self._put_row = put_row
        self._drop_row = drop_row
        self._horizon = horizon
        horizon.watches(self.next_due)
        self._fences: dict[str, int] = {}
        self._random = _Shelf(ttl_s=RANDOM_TTL_S, capacity=MAX_RANDOM, is_random=True)
        self._chosen = _Shelf(ttl_s=chosen_ttl_s, capacity=MAX_CHOSEN, is_random=False)
        self._now = Instant(0.0, 0.0)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._fences

    def __len__(self) -> int:
        return len(self._fences)

    def isdisjoint(self, job_ids: Iterable[str]) -> bool:
        """Whether none of them is remembered."""
        return self._fences.keys().isdisjoint(job_ids)

    def fence_of(self, job_id: str) -> int | None:
        """The fence of the delivery that finished the job; None: no such job is remembered."""
        return self._fences.get(job_id)

    def add(self, job_id: str, fence: int, now: Instant) -> None:
        self._fences[job_id] = fence
        shelf = self._random if len(job_id) >= 32 and _RANDOM_ID.fullmatch(job_id) else self._chosen
        shelf.fresh.append(job_id)
        self._now = now

    def write(self, *, is_read_back: bool) -> None:
        """Puts the ids of this turn into rows; empty ones, if nobody will ever read them."""
        for shelf in (self._random, self._chosen):
            if shelf.fresh:
                self._bury(shelf, is_read_back)

    def _bury(self, shelf: _Shelf, is_read_back: bool) -> None:
        now, ids = self._now, shelf.fresh
        shelf.fresh = []
        seq = self._put_row(self._head(shelf, ids) if is_read_back else b"", b"")
        self._put_down(shelf, _Grave(now.mono + shelf.ttl_s, seq, ids))
        while shelf.held > shelf.capacity and len(shelf.graves) > 1:
            self._forget(shelf)

    def _head(self, shelf: _Shelf, ids: Sequence[str]) -> bytes:
        pairs = [part for job_id in ids for part in (job_id, self._fences[job_id])]
        return orjson.dumps((FORMAT, TOMBSTONES, shelf.is_random, self._now.wall, pairs))

    def load(self, seq: int, is_random: bool, buried_at: float, pairs: list[str | int], now: Instant) -> None:
        shelf = self._random if is_random else self._chosen
        ids = [str(job_id) for job_id in pairs[::2]]
        self._fences.update(zip(ids, (int(fence) for fence in pairs[1::2]), strict=True))
        left_s = min(shelf.ttl_s, max(0.0, buried_at + shelf.ttl_s - now.wall))
        self._put_down(shelf, _Grave(now.mono + left_s, seq, ids))

    def _put_down(self, shelf: _Shelf, grave: _Grave) -> None:
        shelf.graves.append(grave)
        shelf.held += len(grave.ids)
        self._horizon.includes(grave.due + _SLACK_S)

    def _forget(self, shelf: _Shelf) -> None:
        grave = shelf.graves.popleft()
        shelf.held -= len(grave.ids)
        for job_id in grave.ids:
            self._fences.pop(job_id, None)
        self._drop_row(grave.seq)

    def expire(self, now: float) -> None:
        for shelf in (self._random, self._chosen):
            while shelf.graves and shelf.graves[0].due <= now:
                self._forget(shelf)

    def next_due(self) -> float | None:
        """A little late on purpose: a busy second's rows go together."""
        dues = [shelf.graves[0].due + _SLACK_S for shelf in (self._random, self._chosen) if shelf.graves]
        return min(dues, default=None)
