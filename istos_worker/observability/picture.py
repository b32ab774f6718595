"""What all queues in reach look like at one moment. Pure: owners' answers in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

QueueState = Literal["up", "gone", "silent", "refused"]
"""`gone`: no owner. `silent`: there is one, and it does not answer. `refused`: it tells no figures, see `note`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """Figures are None where nobody tells them. `done_per_s` is measured between two looks."""

    queue: str
    state: QueueState
    ready: int | None = None
    delayed: int | None = None
    leased: int | None = None
    done: int | None = None
    dead: int | None = None
    cancelled: int | None = None
    done_per_s: float | None = None
    oldest_ready_s: float | None = None
    paused: bool | None = None
    workers: int | None = None
    gone_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker process. `is_up`: all owners that know it see it alive."""

    worker: str
    held: int
    is_up: bool
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerRow] = ()
    trouble: str = ""
    """Why nothing can be seen at all."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def told(prefix: str, stats: Mapping[str, Any], done_per_s: float | None) -> QueueRow:
    """The row of an owner's `stats` reply."""
    counts = stats["counts"]
    return QueueRow(
        queue=prefix,
        state="up",
        ready=counts["ready"],
        delayed=counts["delayed"],
        leased=counts["leased"],
        done=counts["done"],
        dead=counts["dead"],
        cancelled=counts["cancelled"],
        done_per_s=done_per_s,
        oldest_ready_s=stats["oldest_ready_s"],
        paused=stats["paused"],
        workers=stats["workers"],
    )


def joined(by_queue: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[WorkerRow]:
    """One row a process, though every queue tells of it: those that hold most first."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for queue, workers in by_queue.items():
        for one in workers:
            found.setdefault(str(one["worker"]), []).append((queue, one))
    rows = [
        WorkerRow(
            worker=worker,
            held=sum(int(one["held"]) for _, one in seen),
            is_up=all(bool(one["up"]) for _, one in seen),
            queues=tuple(queue for queue, _ in seen),
        )
        for worker, seen in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.held, row.worker))


class Pace:
    """How many a second, from a counter that starts again with its owner."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def per_s(self, count: int, at_s: float) -> float | None:
        """None at first, and across a restart of the counter. `at_s` is monotonic."""
        last, self._last = self._last, (count, at_s)
        if last is None or count < last[0] or at_s <= last[1]:
            return None
        return (count - last[0]) / (at_s - last[1])
