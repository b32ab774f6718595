"""How long a job waits before it starts, where a free slot is there for it."""

from __future__ import annotations

from benchmarks.phases.phase import Measured, percentile, tally
from benchmarks.record import Kind, Record
from benchmarks.rig import Rig

_EVERY_MS = 20
_LONG_EVERY = 8
_LONG_S = 1.0


def idle(rig: Rig) -> Measured:
    """A warm, idle fleet; one job each 20 ms; from the producer's call to the job's first line."""
    jobs = rig.plan.jobs(rig.plan.latency_jobs, seconds=1.0, least=20)
    rig.reset()
    with rig.fleet():
        rig.settle(rig.plan.procs, idle_s=2.0)
        rig.produce("pace", "--jobs", jobs, "--every-ms", _EVERY_MS)
        rig.wait_for(jobs)
        records = rig.records.read(Kind.DONE)
    count = tally(records, jobs)
    return Measured(figures=_waits("latency", records), lost=count.lost, duplicated=count.duplicated)


def beside_long_jobs(rig: Rig) -> Measured:
    """The same, while every eighth job sleeps a second: about 6 of the 16 slots are always taken. A fleet that
    fetches more than its free slots can start leaves short jobs waiting behind a long one.
    """
    jobs = rig.plan.jobs(rig.plan.latency_jobs, seconds=1.0, least=40)
    long_jobs = len(range(0, jobs, _LONG_EVERY))
    rig.reset()
    with rig.fleet():
        rig.settle(rig.plan.procs, idle_s=2.0)
        paced = (
            "pace",
            "--jobs",
            jobs,
            "--every-ms",
            _EVERY_MS,
            "--long-every",
            _LONG_EVERY,
            "--long-s",
            _LONG_S,
        )
        rig.produce(*paced)
        rig.wait_for(jobs + long_jobs)
        records = rig.records.read(Kind.DONE)
        started = rig.records.read(Kind.STARTED)
        finished = rig.records.read(Kind.FINISHED)
    count = tally([*records, *started], jobs)
    lost = count.lost + len(started) - len(finished)
    return Measured(figures=_waits("mixed", records), lost=lost, duplicated=count.duplicated)


def _waits(name: str, records: list[Record]) -> dict[str, float]:
    waits = [record.waited_ns / 1e6 for record in records]
    if not waits:
        return {}
    shares = {f"{name}_p{share}_ms": percentile(waits, share / 100) for share in (50, 95, 99)}
    return {**shares, f"{name}_max_ms": max(waits)}
