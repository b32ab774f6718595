"""What a fleet weighs when it has nothing to do, and how soon it does its first job."""

from __future__ import annotations

import signal
import statistics
import time

from benchmarks.phases.phase import Measured
from benchmarks.processes import Group
from benchmarks.record import Kind
from benchmarks.rig import Rig

_WARM_JOBS = 1000
_IDLE_S = 2.0
_FEW, _MANY = 2, 4


def memory(rig: Rig) -> Measured:
    """Proportional set size of everything the fleet's command started, after some work, idle: with 4 workers,
    and what each of them beyond 2 adds.
    """
    few, _, _ = _weigh(rig, _FEW)
    many, processes, broker = _weigh(rig, _MANY)
    figures = {
        "fleet_mb": many,
        "further_worker_mb": (many - few) / (_MANY - _FEW),
        "fleet_processes": processes,
        "broker_mb": broker,
    }
    return Measured(figures=figures)


def eight(rig: Rig) -> Measured:
    """The same with 8 workers: all of it, and what each of them beyond 2 adds."""
    few, _, _ = _weigh(rig, _FEW)
    eight, _, _ = _weigh(rig, 8)
    return Measured(figures={"eight_workers_mb": eight, "eighth_worker_mb": (eight - few) / (8 - _FEW)})


def _weigh(rig: Rig, procs: int) -> tuple[float, int, float]:
    rig.reset()
    with rig.fleet(procs=procs) as fleet:
        rig.settle(procs)
        jobs = int(_WARM_JOBS * min(1.0, rig.plan.scale, rig.system.pace.drain / 500))
        rig.fill(jobs)
        rig.wait_for(jobs)
        time.sleep(_IDLE_S)
        return fleet.pss_mb(), len(fleet.pids()), rig.broker.pss_mb()


def boot(rig: Rig) -> Measured:
    """One job waits; from the exec of a fleet of one worker to that job's record. The median of three."""
    times = [seconds for _ in range(3) if (seconds := _first_job_s(rig)) is not None]
    if len(times) < 3:
        return Measured(lost=3 - len(times))
    return Measured(figures={"boot_s": statistics.median(times)})


def _first_job_s(rig: Rig) -> float | None:
    rig.reset()
    if rig.system.broker == "embedded":
        _leave_a_job_behind(rig)
    else:
        rig.fill(1)
    with rig.fleet(procs=1) as fleet:
        return _wait_for_first(rig, fleet)


def _wait_for_first(rig: Rig, fleet: Group) -> float | None:
    if not rig.wait_for_kind(Kind.DONE, 1, 30.0):
        return None
    return (rig.records.read(Kind.DONE)[0].at_ns - fleet.started_ns) / 1e9


def _leave_a_job_behind(rig: Rig) -> None:
    """An embedded owner takes jobs only while its fleet runs: so one that is quiet, and then stops."""
    with rig.fleet(procs=1) as fleet:
        rig.settle(1)
        fleet.leaders[0].send_signal(signal.SIGUSR2)
        time.sleep(0.5)
        rig.fill(1)
    rig.records.clear()
