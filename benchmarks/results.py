"""A run's samples and their summary; to JSON and back. Knows neither processes nor layout."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    system: str
    phase: str
    repeat: int
    took_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    duplicated: int = 0
    notes: tuple[str, ...] = ()
    failed: str = ""
    """Why there are no figures."""
    fault: bool = False
    """The phase kills or stops workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuree:
    """A system as it was measured."""

    title: str
    ours: bool
    policy: str
    """What its broker promises when it answers."""
    versions: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Run:
    machine: dict[str, str]
    plan: dict[str, Any]
    systems: dict[str, Measuree] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path) -> Run:
    data = json.loads(path.read_text())
    return Run(
        machine=data["machine"],
        plan=data["plan"],
        systems={name: Measuree(**system) for name, system in data["systems"].items()},
        skipped=data["skipped"],
        samples=[Sample(**{**sample, "notes": tuple(sample["notes"])}) for sample in data["samples"]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    median: float
    low: float
    high: float
    samples: int

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


Summary = dict[str, dict[str, Spread]]
"""By system, then by figure."""


def summarise(samples: Iterable[Sample]) -> Summary:
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for figure, value in sample.figures.items():
            values[sample.system][figure].append(value)
    return {
        system: {figure: _spread(found) for figure, found in figures.items()}
        for system, figures in values.items()
    }


def _spread(values: list[float]) -> Spread:
    return Spread(median=statistics.median(values), low=min(values), high=max(values), samples=len(values))


def violations(run: Run) -> list[str]:
    """Why the run fails: any job of ours lost or run twice, any phase of ours without figures, and jobs that a
    peer lost where nothing was killed or stopped, since its figures then count work that was not done.
    """
    said = []
    for sample in run.samples:
        ours = run.systems[sample.system].ours
        if sample.lost and (ours or not sample.fault):
            said.append(f"{_where(sample)}: {sample.lost} lost")
        if sample.duplicated and ours:
            said.append(f"{_where(sample)}: {sample.duplicated} run twice")
        if sample.failed and ours:
            said.append(f"{_where(sample)}: {sample.failed}")
    return said


def findings(run: Run) -> list[str]:
    """About the peers: what does not fail the run and should be known beside the figures."""
    said = []
    for sample in run.samples:
        words = list(sample.notes)
        if not run.systems[sample.system].ours:
            words += _told(sample)
        if words:
            said.append(f"{_where(sample)}: {'; '.join(words)}")
    return said


def _told(sample: Sample) -> list[str]:
    words = [f"not measured: {sample.failed}"] if sample.failed else []
    if sample.lost and sample.fault and not sample.notes:
        words.append(f"{sample.lost} lost, or not back in the time given")
    if sample.duplicated:
        words.append(f"{sample.duplicated} run twice")
    return words


def _where(sample: Sample) -> str:
    return f"{sample.system}, {sample.phase}, repeat {sample.repeat + 1}"
