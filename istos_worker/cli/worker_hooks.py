"""What the supervisor does not know about its workers: whom to tell of a death, and the figures of queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from istos_worker.cli.worker_metrics import fleet_metrics, queue_metrics
from istos_worker.observability.exposition import render
from istos_worker.observability.figures import (
    QueueFigures,
    added,
    forget_figures,
    read_figures,
)
from supervisor.obituary import Obituary
from supervisor.orders import Body
from supervisor.status import Status


class FleetHooks:
    """Called in the supervisor's loop; reads only small files of the runtime folder."""

    def __init__(self, figures: Path, *, lines_lost: Callable[[], int]) -> None:
        self._folder = figures
        self._lines_lost = lines_lost
        self._of_the_dead: dict[str, QueueFigures] = {}

    def on_exit(self, obituary: Obituary) -> Body | None:
        """The order to bury a worker that may still hold jobs. One that left in order has handed them back."""
        if obituary.pid is not None:
            self._of_the_dead = added([self._of_the_dead, read_figures(self._folder, obituary.pid)])
            forget_figures(self._folder, obituary.pid)
        if not obituary.label or (obituary.expected and not obituary.held):
            return None
        return {
            "bury": obituary.label,
            "reason": reason_of(obituary),
            "running": list(obituary.held),
        }

    def metrics(self, status: Status) -> str:
        alive = [
            read_figures(self._folder, worker.pid) for worker in status.workers if worker.pid is not None
        ]
        return render([*fleet_metrics(status, self._lines_lost()), *queue_metrics(alive, self._of_the_dead)])


def reason_of(obituary: Obituary) -> str:
    """`worker lost: killed by SIGKILL, likely out of memory, 3.9 GiB`."""
    return f"worker lost: {obituary.cause}, {_size(obituary.peak_memory_bytes)}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
