"""The ratios to reach against the best peer of the same run. Pure; the figures' source is docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figures import BY_KEY
from benchmarks.results import Measuree, Spread, Summary

MEMORY, DURABLE = "ours", "ours-sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`ratio` to a rival's figure, or the `limit` itself where no ratio is asked for."""

    ratio: float | None = None
    limit: float | None = None
    rival: str | None = None
    """None: the best peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    key: str
    memory: Goal
    durable: Goal


TARGETS = (
    Target(key="drain_per_s", memory=Goal(ratio=10), durable=Goal(ratio=5)),
    Target(key="e2e_per_s", memory=Goal(ratio=4), durable=Goal(ratio=3)),
    Target(
        key="enqueue_one_per_s",
        memory=Goal(ratio=1.2, rival="dramatiq"),
        durable=Goal(ratio=0.5, rival=MEMORY),
    ),
    Target(key="enqueue_sixteen_per_s", memory=Goal(ratio=5), durable=Goal(ratio=4)),
    Target(key="enqueue_bulk_per_s", memory=Goal(ratio=6), durable=Goal(ratio=3)),
    Target(key="latency_p50_ms", memory=Goal(ratio=0.6), durable=Goal(ratio=0.94)),
    Target(key="latency_p99_ms", memory=Goal(ratio=0.6), durable=Goal(ratio=1.25)),
    Target(key="worker_cpu_us", memory=Goal(limit=60), durable=Goal(limit=60)),
    Target(key="fleet_mb", memory=Goal(limit=60), durable=Goal(limit=60)),
    Target(key="further_worker_mb", memory=Goal(limit=6), durable=Goal(limit=6)),
    Target(key="boot_s", memory=Goal(limit=0.40), durable=Goal(limit=0.45)),
    Target(key="crash_s", memory=Goal(limit=0.2), durable=Goal(limit=0.2)),
    Target(key="graceful_finished", memory=Goal(limit=8), durable=Goal(limit=8)),
    Target(key="graceful_reruns", memory=Goal(limit=0), durable=Goal(limit=0)),
)
BACKLOG_LIMIT = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    value: Spread | None
    ratio: float | None
    """To the rival, or to the best peer where the goal is a limit."""
    rival: str
    goal: Goal
    met: bool | None
    """None: this run cannot tell."""


def best_peer(summary: Summary, systems: Mapping[str, Measuree], key: str) -> tuple[str, float] | None:
    found = [
        (figures[key].median, name)
        for name, figures in summary.items()
        if key in figures and not systems[name].ours
    ]
    if not found:
        return None
    value, name = max(found) if BY_KEY[key].more_is_better else min(found)
    return name, value


def judge(summary: Summary, systems: Mapping[str, Measuree], target: Target, system: str) -> Verdict:
    goal = target.memory if system == MEMORY else target.durable
    value = summary.get(system, {}).get(target.key)
    rival, rival_value = _rival(summary, systems, target.key, goal)
    ratio = value.median / rival_value if value and rival_value else None
    return Verdict(value=value, ratio=ratio, rival=rival, goal=goal, met=_met(target.key, value, ratio, goal))


def _rival(
    summary: Summary, systems: Mapping[str, Measuree], key: str, goal: Goal
) -> tuple[str, float | None]:
    if goal.rival:
        spread = summary.get(goal.rival, {}).get(key)
        return goal.rival, spread.median if spread else None
    return best_peer(summary, systems, key) or ("", None)


def _met(key: str, value: Spread | None, ratio: float | None, goal: Goal) -> bool | None:
    if value is None:
        return None
    if goal.ratio is not None:
        measured, wanted = ratio, goal.ratio
    else:
        measured, wanted = value.median, goal.limit or 0.0
    if measured is None:
        return None
    return measured >= wanted if BY_KEY[key].more_is_better else measured <= wanted
