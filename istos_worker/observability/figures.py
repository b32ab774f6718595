"""A worker's figures by queue, kept where the supervisor can read them: one small file a process, replaced whole.
Knows numbers; no HTTP, no links."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """Counters since the process started, except `busy`, `slots` and `prefetched`, which are of this moment."""

    done: int = 0
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    stale: int = 0
    busy: int = 0
    slots: int = 0
    prefetched: int = 0
    connected: bool = False

    def plus(self, other: QueueFigures) -> QueueFigures:
        return QueueFigures(**{name: getattr(self, name) + getattr(other, name) for name in COUNTERS})


COUNTERS = ("done", "succeeded", "failed", "released", "stale")
_NAMES = frozenset(field.name for field in fields(QueueFigures))

Figures = Mapping[str, QueueFigures]


def write_figures(folder: str, pid: int, figures: Figures) -> None:
    """Never raises for a full or missing folder: a figure is not worth a job."""
    data = json.dumps(
        {prefix: {name: getattr(one, name) for name in _NAMES} for prefix, one in figures.items()}
    )
    temporary = f"{folder}/.{pid}"
    try:
        with open(temporary, "wb") as file:
            file.write(data.encode())
        os.replace(temporary, f"{folder}/{pid}")
    except OSError:
        pass


def read_figures(folder: Path, pid: int) -> dict[str, QueueFigures]:
    """What that process wrote last; nothing when it never did."""
    try:
        raw = json.loads((folder / str(pid)).read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        prefix: QueueFigures(**{name: value for name, value in one.items() if name in _NAMES})
        for prefix, one in raw.items()
    }


def forget_figures(folder: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        (folder / str(pid)).unlink()


def added(figures: Iterable[Figures]) -> dict[str, QueueFigures]:
    """The counters of several processes by queue."""
    total: dict[str, QueueFigures] = {}
    for one in figures:
        for prefix, of_queue in one.items():
            total[prefix] = total.get(prefix, QueueFigures()).plus(of_queue)
    return total
