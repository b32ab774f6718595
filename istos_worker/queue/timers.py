"""Things due at a time, by number. Knows neither what they are nor what happens then."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

NextDue = Callable[[], float | None]


class Horizon:
    """Before `at` nothing of many things is due. Dropping one does not move it: it may be too early, never too late."""

    __slots__ = ("_watched", "at")

    def __init__(self) -> None:
        self.at = math.inf
        self._watched: list[NextDue] = []

    def watches(self, next_due: NextDue) -> None:
        """Whoever is watched says so, and `includes` each due time that it sets from then on."""
        self._watched.append(next_due)

    def includes(self, due: float) -> None:
        if due < self.at:
            self.at = due

    def next_due(self) -> float | None:
        return min((due for next_due in self._watched if (due := next_due()) is not None), default=None)

    def renew(self) -> None:
        due = self.next_due()
        self.at = math.inf if due is None else due


class Deadlines:
    """At most one due time per number; setting, dropping and firing cost O(log n) at most.

    Heap entries are validated when they surface: an entry is real while the table holds the same due time. Entries
    left behind by changes are swept when they outnumber the real ones, so memory follows what is really due.
    """

    __slots__ = ("_due", "_heap", "_horizon")

    def __init__(self, horizon: Horizon) -> None:
        self._horizon = horizon
        horizon.watches(self.next_due)
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, number: int) -> bool:
        return number in self._due

    def get(self, number: int) -> float | None:
        return self._due.get(number)

    def set(self, number: int, due: float) -> None:
        self._due[number] = due
        heappush(self._heap, (due, number))
        self._horizon.includes(due)
        if len(self._heap) > 2 * len(self._due) + 64:
            self._sweep()

    def drop(self, number: int) -> None:
        self._due.pop(number, None)

    def _sweep(self) -> None:
        self._heap = [(due, number) for number, due in self._due.items()]
        heapify(self._heap)

    def pop_due(self, now: float) -> int | None:
        """The number that is due first, if its time has come; it is forgotten."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, number = heappop(heap)
            if self._due.get(number) == due:
                del self._due[number]
                return number
        return None

    def next_due(self) -> float | None:
        heap = self._heap
        while heap:
            due, number = heap[0]
            if self._due.get(number) == due:
                return due
            heappop(heap)
        return None
