"""The shape of a phase and of its outcome; and the count of what was lost or ran twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.record import Record
from benchmarks.rig import Rig
from benchmarks.systems import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    figures: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    duplicated: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: str
    run: Callable[[Rig], Measured]
    applies: Callable[[System], bool]
    fault: bool = False
    """It kills or stops: what a peer loses here is a finding about that peer, and one run of it suffices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    lost: int = 0
    duplicated: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(lost=self.lost + other.lost, duplicated=self.duplicated + other.duplicated)


def tally(records: Iterable[Record], jobs: int) -> Tally:
    """Against the jobs 0 ... jobs-1, each of which must have run once. A job nobody sent counts as a duplicate."""
    runs = Counter(record.job for record in records)
    once = sum(1 for job in runs if 0 <= job < jobs)
    return Tally(lost=jobs - once, duplicated=runs.total() - once)


def span_s(records: Sequence[Record]) -> float:
    """From the first record to the last."""
    times = [record.at_ns for record in records]
    return (max(times) - min(times)) / 1e9 if len(times) > 1 else 0.0


def rate(jobs: int, seconds: float) -> float:
    return jobs / seconds if seconds > 0 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
