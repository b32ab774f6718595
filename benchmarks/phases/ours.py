"""How this project behaves beyond the common phases: more processes, longer queues, other jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.phases.phase import Measured, Tally, rate, span_s, tally
from benchmarks.record import Kind
from benchmarks.rig import Rig

_SIZES = {"100b": (100, 20_000), "10kb": (10_000, 4_000), "1mb": (1_000_000, 60)}
"""Bytes of a job, and how many."""
_BACKLOG_JOBS = 10_000
"""Drained at least, in as many rounds as that takes: processes are charged by a clock of 10 ms."""


def scaling(rig: Rig) -> Measured:
    figures, total = {}, Tally()
    for procs in rig.plan.scaling:
        figures[f"scaling_{procs}_per_s"], count = _drained(rig, procs=procs)
        total += count
    return Measured(figures=figures, lost=total.lost, duplicated=total.duplicated)


def handlers(rig: Rig) -> Measured:
    figures, total = {}, Tally()
    for handler in ("async", "sync"):
        figures[f"handler_{handler}_per_s"], count = _drained(rig, env={"BENCH_HANDLER": handler})
        total += count
    return Measured(figures=figures, lost=total.lost, duplicated=total.duplicated)


def _drained(
    rig: Rig, *, procs: int | None = None, env: Mapping[str, str] | None = None
) -> tuple[float, Tally]:
    jobs = rig.plan.jobs(rig.system.pace.drain, seconds=rig.plan.seconds / 2)
    rig.reset()
    rig.fill(jobs)
    with rig.fleet(procs=procs, env=env):
        rig.wait_for(jobs)
        records = rig.records.read(Kind.DONE)
    count = tally(records, jobs)
    return rate(jobs - count.lost, span_s(records)), count


def payloads(rig: Rig) -> Measured:
    """End to end, 16 at once."""
    figures, total = {}, Tally()
    for name, (size_bytes, most) in _SIZES.items():
        jobs = rig.plan.jobs(most, seconds=1.0, least=20)
        rig.reset()
        with rig.fleet():
            rig.settle(rig.plan.procs)
            sent = rig.produce("enqueue", "--jobs", jobs, "--way", "sixteen", "--size", size_bytes)
            rig.wait_for(jobs)
            records = rig.records.read(Kind.DONE)
        total += (count := tally(records, jobs))
        ended_ns = max((record.at_ns for record in records), default=0)
        figures[f"payload_{name}_per_s"] = rate(jobs - count.lost, (ended_ns - sent["begun_ns"]) / 1e9)
    return Measured(figures=figures, lost=total.lost, duplicated=total.duplicated)


def backlog(rig: Rig) -> Measured:
    """Microseconds of CPU a job, of owner and warm fleet together, for a queue that was paused while it was filled.
    What grows with the number of jobs held shows here. CPU, since a short backlog has all been claimed when its
    first job starts: the time it takes leaves out what it costs.
    """
    figures, total = {}, Tally()
    for size in rig.plan.backlogs:
        figures[f"backlog_{size}_cpu_us"], count = _backlog(rig, max(20, int(size * rig.plan.scale)))
        total += count
    if total.lost:
        return Measured(lost=total.lost, duplicated=total.duplicated)
    least, most = min(rig.plan.backlogs), max(rig.plan.backlogs)
    figures["backlog_cpu_ratio"] = figures[f"backlog_{most}_cpu_us"] / figures[f"backlog_{least}_cpu_us"]
    return Measured(figures=figures, lost=total.lost, duplicated=total.duplicated)


def _backlog(rig: Rig, jobs: int) -> tuple[float, Tally]:
    """CPU microseconds a job, over all rounds."""
    rounds = math.ceil(_BACKLOG_JOBS / jobs)
    cpu_s, total = 0.0, Tally()
    rig.reset()
    with rig.fleet() as fleet:
        rig.settle(rig.plan.procs)
        for _ in range(rounds):
            rig.records.clear()
            rig.produce("call", "pause")
            rig.fill(jobs)
            before_s = rig.broker.cpu_s() + fleet.cpu_s()
            rig.produce("call", "resume")
            rig.wait_for(jobs)
            cpu_s += rig.broker.cpu_s() + fleet.cpu_s() - before_s
            total += tally(rig.records.read(Kind.DONE), jobs)
    return cpu_s / (rounds * jobs) * 1e6, total
