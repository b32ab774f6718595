"""What a kill -9 and a TERM cost. For ours every job counts; what a peer loses is told, not held against the run."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.phases.phase import Measured
from benchmarks.processes import Group, wait_until
from benchmarks.record import Kind
from benchmarks.rig import Rig

_START_S = 30.0
_EXIT_S = 60.0
_LATE_S = 2.0


def crash(rig: Rig) -> Measured:
    """One job is running; its process gets a KILL; until the job starts again. Default settings everywhere."""
    rig.reset()
    with rig.fleet() as fleet:
        rig.settle(rig.plan.procs)
        rig.produce("list", '[{"kind": "crash", "job": 0}]')
        if not rig.wait_for_kind(Kind.STARTED, 1, _START_S):
            return Measured(lost=1, notes=("the job never started",))
        time.sleep(1.0)
        os.kill(rig.records.read(Kind.STARTED)[0].pid, signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        back = rig.wait_for_kind(Kind.STARTED, 2, rig.plan.crash_cap_s)
        time.sleep(_LATE_S if back else 0.0)
        return _second_start(rig, fleet, killed_ns)


def _second_start(rig: Rig, fleet: Group, killed_ns: int) -> Measured:
    starts = rig.records.read(Kind.STARTED)
    notes = () if fleet.alive() else ("a main process of the fleet ended with it",)
    if len(starts) < 2:
        return Measured(lost=1, notes=(f"not started again within {rig.plan.crash_cap_s:.0f} s", *notes))
    finished = len(rig.records.read(Kind.FINISHED))
    return Measured(
        figures={"crash_s": (starts[1].at_ns - killed_ns) / 1e9},
        lost=0 if finished else 1,
        duplicated=len(starts) - 2,
        notes=notes,
    )


def graceful(rig: Rig) -> Measured:
    """8 jobs of some seconds run in one main process; it gets a TERM. Then a second fleet shows what was left."""
    jobs = rig.system.jobs_at_once or rig.plan.slots
    rig.reset()
    with rig.fleet(procs=1, one_main=True) as fleet:
        rig.settle(1)
        rig.produce("list", _sleeping(jobs, rig.plan.graceful_job_s))
        rig.wait_for_kind(Kind.STARTED, jobs, _START_S)
        time.sleep(0.5)
        running = len(rig.records.read(Kind.STARTED))
        exit_s, code = _terminate(fleet)
        survivors = len(fleet.pids())
    finished = {record.job for record in rig.records.read(Kind.FINISHED)}
    figures = {
        "graceful_jobs": jobs,
        "graceful_running": running,
        "graceful_finished": len(finished),
        "graceful_exit_s": exit_s,
        "graceful_exit_code": code,
        "graceful_processes_left": survivors,
    }
    return _afterwards(rig, figures, jobs)


def _sleeping(jobs: int, seconds: float) -> str:
    bodies = [f'{{"kind": "sleep", "job": {job}, "s": {seconds}}}' for job in range(jobs)]
    return f"[{', '.join(bodies)}]"


def _terminate(fleet: Group) -> tuple[float, int]:
    begun = time.monotonic()
    fleet.terminate()
    ended = wait_until(lambda: fleet.leaders[0].poll() is not None, _EXIT_S)
    code = fleet.leaders[0].poll() if ended else None
    return time.monotonic() - begun, -999 if code is None else code


def _afterwards(rig: Rig, figures: dict[str, float], jobs: int) -> Measured:
    """Jobs that a second fleet runs again were charged or lost their end; jobs that it cannot finish are lost."""
    patience_s = _LATE_S if figures["graceful_finished"] == jobs else rig.plan.restart_wait_s

    def all_finished() -> bool:
        return len({record.job for record in rig.records.read(Kind.FINISHED)}) == jobs

    begun = time.monotonic()
    with rig.fleet(procs=1, one_main=True):
        wait_until(all_finished, patience_s, every_s=0.05)
        time.sleep(max(0.0, _LATE_S - (time.monotonic() - begun)))
    ends = rig.records.read(Kind.FINISHED)
    finished = {record.job for record in ends}
    starts = len(rig.records.read(Kind.STARTED))
    return Measured(
        figures={**figures, "graceful_reruns": starts - figures["graceful_running"]},
        lost=jobs - len(finished),
        duplicated=len(ends) - len(finished),
    )
