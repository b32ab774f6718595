"""How many jobs to claim ahead (docs/worker.md, "Claiming ahead"). Pure: it is told durations and counts."""

from __future__ import annotations

import math

_WEIGHT = 0.1
_SHORTEST_S = 1e-6
_MIN_TRUST = 1 / 64


class Prefetch:
    def __init__(self, *, within_s: float, limit: int) -> None:
        self._within_s = within_s
        self._limit = limit
        self._log_s: float | None = None
        self._trust = 1.0
        self.is_among_crashed = False
        """The job claimed last had seen a worker die: if this one dies too, few are to be charged with it."""

    @property
    def typical_s(self) -> float | None:
        """The typical duration of a job; None before the first."""
        return None if self._log_s is None else math.exp(self._log_s)

    def ran(self, seconds: float) -> None:
        """A job held its slot for this long."""
        log_s = math.log(seconds if seconds > _SHORTEST_S else _SHORTEST_S)
        known = self._log_s
        self._log_s = log_s if known is None else known + _WEIGHT * (log_s - known)

    def overrated(self) -> None:
        """A claimed job did not start in time."""
        self._trust = max(self._trust / 2, _MIN_TRUST)

    def proved(self) -> None:
        """Everything that was claimed ahead has started in time."""
        self._trust = min(self._trust * 1.25, 1.0)

    def ahead(self, usable_slots: int) -> int:
        """How many jobs beyond the free slots would start in time."""
        if self._log_s is None or usable_slots <= 0:
            return 0
        started = self._trust * usable_slots * self._within_s / math.exp(self._log_s)
        most = min(usable_slots, self._limit) if self.is_among_crashed else self._limit
        return min(int(started), most)
