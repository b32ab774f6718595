"""What each figure is called, in which unit, and which way is better. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    key: str
    title: str
    digits: int = 0
    more_is_better: bool = True


COMMON = (
    Figure(key="drain_per_s", title="drain /s"),
    Figure(key="e2e_per_s", title="end to end /s"),
    Figure(key="enqueue_one_per_s", title="enqueue one by one /s"),
    Figure(key="enqueue_sixteen_per_s", title="16 at once /s"),
    Figure(key="enqueue_bulk_per_s", title="bulk /s"),
    Figure(key="latency_p50_ms", title="start latency p50 ms", digits=2, more_is_better=False),
    Figure(key="latency_p95_ms", title="start latency p95 ms", digits=2, more_is_better=False),
    Figure(key="latency_p99_ms", title="start latency p99 ms", digits=2, more_is_better=False),
)
COST = (
    Figure(key="worker_cpu_us", title="worker CPU us/job", more_is_better=False),
    Figure(key="broker_cpu_us", title="broker or owner CPU us/job", more_is_better=False),
    Figure(key="fleet_mb", title="fleet of 4, idle, MB PSS", more_is_better=False),
    Figure(key="further_worker_mb", title="each further worker MB", digits=1, more_is_better=False),
    Figure(key="broker_mb", title="broker or owner MB", more_is_better=False),
    Figure(key="boot_s", title="boot to first job s", digits=2, more_is_better=False),
    Figure(key="crash_s", title="kill -9 to second start s", digits=2, more_is_better=False),
    Figure(key="graceful_finished", title="TERM: finished"),
    Figure(key="graceful_jobs", title="of"),
    Figure(key="graceful_exit_s", title="exit after s", digits=1, more_is_better=False),
    Figure(key="graceful_reruns", title="run again", more_is_better=False),
)
BY_KEY = {figure.key: figure for figure in (*COMMON, *COST)}


def shown(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"
