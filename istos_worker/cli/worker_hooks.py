"""What the supervisor does not know about its workers: whom to tell of a death, and the figures of queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from istos_worker.observability.exposition import Metric, render
from istos_worker.observability.figures import (
    COUNTERS,
    Figures,
    QueueFigures,
    added,
    forget_figures,
    read_figures,
)
from supervisor.obituary import Obituary
from supervisor.orders import Body
from supervisor.status import Status

_HELP = {
    "done": "Attempts finished, however they ended.",
    "succeeded": "Attempts that succeeded.",
    "failed": "Attempts that failed.",
    "released": "Jobs handed back uncharged.",
    "stale": "Outcomes the owner refused, since the job had gone to another holder.",
}


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


def fleet_metrics(status: Status, lines_lost: int) -> list[Metric]:
    stages = dict.fromkeys(("booting", "ready", "leaving"), 0)
    for worker in status.workers:
        stages[worker.stage] = stages.get(worker.stage, 0) + 1
    totals = status.totals
    return [
        Metric(
            name="istos_worker_processes",
            kind="gauge",
            help="Worker processes by stage.",
            samples=[({"stage": stage}, number) for stage, number in stages.items()],
        ),
        Metric(
            name="istos_worker_processes_wanted",
            kind="gauge",
            help="Worker processes asked for.",
            samples=[({}, status.procs)],
        ),
        Metric(
            name="istos_worker_serving",
            kind="gauge",
            help="Ready workers that reach an owner.",
            samples=[({}, sum(w.stage == "ready" and w.serving for w in status.workers))],
        ),
        Metric(
            name="istos_worker_fleet_ready",
            kind="gauge",
            help="What /readyz says.",
            samples=[({}, status.ready)],
        ),
        Metric(
            name="istos_worker_generation",
            kind="gauge",
            help="Rises with every reload.",
            samples=[({}, status.generation)],
        ),
        Metric(
            name="istos_worker_fleet_jobs_total",
            kind="counter",
            help="Attempts finished by all workers.",
            samples=[({}, totals.done + sum(worker.done for worker in status.workers))],
        ),
        *(
            Metric(name=f"istos_worker_{name}_total", kind="counter", help=text, samples=[({}, number)])
            for name, text, number in (
                ("deaths", "Worker processes gone, for whatever reason.", totals.deaths),
                ("crashes", "Worker processes that died unbidden.", totals.crashes),
                ("recycled", "Workers replaced for their age, memory or number of jobs.", totals.recycled),
                ("stalls", "Workers killed because their event loop was blocked.", totals.stalls),
                ("reloads", "Reloads completed.", totals.reloads),
                ("reload_failures", "Reloads rolled back.", totals.reload_failures),
                ("log_lines_lost", "Log lines dropped because nobody read them.", lines_lost),
            )
        ),
        Metric(
            name="istos_worker_memory_bytes",
            kind="gauge",
            help="Private memory of a worker.",
            samples=[
                ({"slot": str(w.slot)}, w.private_bytes)
                for w in status.workers
                if w.private_bytes is not None
            ],
        ),
    ]


def queue_metrics(alive: list[dict[str, QueueFigures]], dead: Figures) -> list[Metric]:
    counted = added([dead, *alive])
    counters = [
        Metric(
            name=f"istos_worker_jobs_{name}_total",
            kind="counter",
            help=_HELP[name],
            samples=[({"queue": prefix}, getattr(one, name)) for prefix, one in sorted(counted.items())],
        )
        for name in COUNTERS
    ]
    gauges = [
        Metric(
            name=f"istos_worker_{name}",
            kind="gauge",
            help=text,
            samples=[({"queue": prefix}, number) for prefix, number in sorted(_summed(alive, name).items())],
        )
        for name, text in (
            ("busy", "Jobs running now."),
            ("slots", "Jobs that may run at the same time."),
            ("prefetched", "Jobs claimed and not started."),
        )
    ]
    return [*counters, *gauges]


def _summed(alive: list[dict[str, QueueFigures]], name: str) -> dict[str, float]:
    total: dict[str, float] = {}
    for figures in alive:
        for prefix, one in figures.items():
            total[prefix] = total.get(prefix, 0) + getattr(one, name)
    return total
