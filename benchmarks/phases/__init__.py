"""What is measured. Each phase takes a rig and gives back its figures and its verdict on lost jobs."""

from __future__ import annotations

from benchmarks.phases import faults, footprint, latency, ours, throughput
from benchmarks.phases.phase import Measured, Phase
from benchmarks.systems import System

__all__ = ["ALL", "BY_NAME", "Measured", "Phase"]


def _separate(system: System) -> bool:
    return system.broker != "embedded"


def _any(system: System) -> bool:
    return True


def _ours(system: System) -> bool:
    return system.ours and system.broker in ("memory", "sqlite")


ALL = (
    Phase(name="enqueue", run=throughput.enqueue, applies=_separate),
    Phase(name="drain", run=throughput.drain, applies=_separate),
    Phase(name="e2e", run=throughput.end_to_end, applies=_separate),
    Phase(name="latency", run=latency.idle, applies=_separate),
    Phase(name="memory", run=footprint.memory, applies=_any),
    Phase(name="boot", run=footprint.boot, applies=_any),
    Phase(name="crash", run=faults.crash, applies=_separate, fault=True),
    Phase(name="graceful", run=faults.graceful, applies=_separate, fault=True),
    Phase(name="scaling", run=ours.scaling, applies=_ours),
    Phase(name="backlog", run=ours.backlog, applies=_ours),
    Phase(name="mixed", run=latency.beside_long_jobs, applies=_ours),
    Phase(name="handlers", run=ours.handlers, applies=_ours),
    Phase(name="payloads", run=ours.payloads, applies=_ours),
    Phase(name="eight", run=footprint.eight, applies=_ours),
)
BY_NAME = {phase.name: phase for phase in ALL}
