"""The figures of a fleet as metrics: the supervisor's own, and those of its workers by queue. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from istos_worker.observability.exposition import Metric, render
from istos_worker.observability.figures import COUNTERS, Figures, added
from supervisor.status import Status

_HELP = {
    "done": "Attempts finished, however they ended.",
    "succeeded": "Attempts that succeeded.",
    "failed": "Attempts that failed.",
    "released": "Jobs handed back uncharged.",
    "stale": "Outcomes the owner refused, since this worker no longer held the job.",
}


def solo_page(status: Status, figures: Figures, lines_lost: int) -> str:
    """Of a process that is a fleet of its own."""
    return render([*fleet_metrics(status, lines_lost), *queue_metrics([figures], {})])


def fleet_metrics(status: Status, lines_lost: int) -> list[Metric]:
    return [_by_stage(status), _memory(status), *_gauges(status), *_counters(status, lines_lost)]


def _by_stage(status: Status) -> Metric:
    stages = dict.fromkeys(("booting", "ready", "leaving"), 0)
    for worker in status.workers:
        stages[worker.stage] = stages.get(worker.stage, 0) + 1
    samples = [({"stage": stage}, number) for stage, number in stages.items()]
    return Metric(
        name="istos_worker_processes", kind="gauge", help="Worker processes by stage.", samples=samples
    )


def _memory(status: Status) -> Metric:
    measured = [(w.slot, w.private_bytes) for w in status.workers if w.private_bytes is not None]
    samples = [({"slot": str(slot)}, size) for slot, size in measured]
    return Metric(
        name="istos_worker_memory_bytes", kind="gauge", help="Private memory of a worker.", samples=samples
    )


def _gauges(status: Status) -> list[Metric]:
    serving = sum(worker.stage == "ready" and worker.serving for worker in status.workers)
    return _plain(
        "gauge",
        ("processes_wanted", "Worker processes asked for.", status.procs),
        ("serving", "Ready workers that reach an owner.", serving),
        ("fleet_ready", "What /readyz says.", status.ready),
        ("generation", "Rises with every reload.", status.generation),
    )


def _counters(status: Status, lines_lost: int) -> list[Metric]:
    totals, owner = status.totals, status.companion
    return _plain(
        "counter",
        ("fleet_jobs_total", "Attempts finished by all workers.", totals.done),
        ("deaths_total", "Worker processes gone, for whatever reason.", totals.deaths),
        ("crashes_total", "Worker processes that died unbidden.", totals.crashes),
        ("recycled_total", "Workers replaced: age, memory, number of jobs, reload.", totals.recycled),
        ("stalls_total", "Workers killed because their event loop was blocked.", totals.stalls),
        ("reloads_total", "Reloads completed.", totals.reloads),
        ("reload_failures_total", "Reloads rolled back.", totals.reload_failures),
        (
            "owner_restarts_total",
            "Times the embedded owner was started again.",
            owner.restarts if owner else 0,
        ),
        ("log_lines_lost_total", "Log lines dropped: nobody read them, or no room.", lines_lost),
    )


def _plain(kind: str, *named: tuple[str, str, float]) -> list[Metric]:
    """Metrics without labels."""
    return [
        Metric(name=f"istos_worker_{name}", kind=kind, help=text, samples=[({}, number)])
        for name, text, number in named
    ]


def queue_metrics(alive: Sequence[Figures], dead: Figures) -> list[Metric]:
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


def _summed(alive: Sequence[Figures], name: str) -> dict[str, float]:
    total: dict[str, float] = {}
    for figures in alive:
        for prefix, one in figures.items():
            total[prefix] = total.get(prefix, 0) + getattr(one, name)
    return total
