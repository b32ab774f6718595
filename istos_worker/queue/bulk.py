"""What is asked of all dead letters at once. Done in slices, one a turn: nobody else waits for a million of them.
Knows how far it is; not what is done to a letter."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from istos_worker.queue.records import PARKED, Instant, Job, Parked, Waiter
from istos_worker.queue.timers import Horizon

if TYPE_CHECKING:
    from istos_worker.queue.endings import DeadLetters

SLICE: Final = 1000
LONGEST_S: Final = 2.0
"""The asker is answered after this long, done or not: well before its patience is over."""


class BulkDone(NamedTuple):
    """`more`: time was up; asked again, it goes on."""

    letters: int
    more: bool


@dataclass(slots=True, kw_only=True)
class _Work:
    act: Callable[[Job], bool]
    waiter: Waiter
    last_seq: int
    """Who dies later is not meant."""
    ends_at: float
    after_seq: int = 0
    count: int = 0


class Bulk:
    """`answer` gets the waiter and its BulkDone."""

    __slots__ = ("_answer", "_dead", "_horizon", "_works")

    def __init__(self, dead: DeadLetters, answer: Callable[[Waiter, object], None], horizon: Horizon) -> None:
        self._dead = dead
        self._answer = answer
        self._horizon = horizon
        horizon.watches(self.next_due)
        self._works: deque[_Work] = deque()

    def begin(self, act: Callable[[Job], bool], waiter: Waiter, now: Instant) -> BulkDone | Parked:
        """`act` says whether a letter counts. A few letters are done at once."""
        work = _Work(act=act, waiter=waiter, last_seq=self._dead.last_seq, ends_at=now.mono + LONGEST_S)
        if not self._works and self._slice(work):
            return BulkDone(work.count, False)
        self._works.append(work)
        self._horizon.includes(-math.inf)
        return PARKED

    def go_on(self, now: Instant) -> None:
        """One slice."""
        if not self._works:
            return
        work = self._works[0]
        is_over = self._slice(work)
        if is_over or now.mono >= work.ends_at:
            self._works.popleft()
            self._answer(work.waiter, BulkDone(work.count, not is_over))

    def _slice(self, work: _Work) -> bool:
        """True when that was the last one."""
        letters = self._dead.slice(work.after_seq, SLICE)
        for job in letters:
            if job.seq > work.last_seq:
                return True
            work.after_seq = job.seq
            work.count += work.act(job)
        return len(letters) < SLICE

    def next_due(self) -> float | None:
        return -math.inf if self._works else None

    def withdraw(self, waiter: Waiter) -> None:
        self._works = deque(work for work in self._works if work.waiter is not waiter)

    def surrender(self) -> list[Waiter]:
        works, self._works = self._works, deque()
        return [work.waiter for work in works]
