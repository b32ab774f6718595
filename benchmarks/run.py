"""The order of a run: phase by phase, system after system, so that what drifts hits all of them alike."""

from __future__ import annotations

import compileall
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import machine
from benchmarks.brokers import (
    ROOT,
    Broker,
    EmbeddedBroker,
    PostgresBroker,
    RedisBroker,
    owner_of_istos,
    owner_of_ours,
)
from benchmarks.phases import Phase
from benchmarks.plan import Plan
from benchmarks.results import Measuree, Run, Sample
from benchmarks.rig import Rig, Unfinished
from benchmarks.services import Postgres, Redis, postgres_bin, redis_server
from benchmarks.systems import System

Save = Callable[[Run], None]


def missing(system: System) -> str:
    """Why this system cannot be measured here; empty where it can."""
    if not Path(system.venv.program(system.program)).exists():
        return f"not installed: python -m benchmarks install {system.name}"
    if system.broker == "redis" and redis_server() is None:
        return "no redis-server on this machine"
    if system.broker == "postgres" and postgres_bin() is None:
        return "no PostgreSQL server on this machine"
    return ""


def measure(systems: Sequence[System], phases: Sequence[Phase], plan: Plan, *, sync: str, save: Save) -> Run:
    run = Run(machine=machine.describe(), plan=asdict(plan))
    run.skipped = {system.name: reason for system in systems if (reason := missing(system))}
    present = [system for system in systems if system.name not in run.skipped]
    _compile_ours()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="istos-bench-")))
        rigs = list(_rigs(stack, present, plan, folder, sync, run))
        for phase, rig, repeat in order(phases, rigs, plan.repeat):
            run.samples.append(_sample(phase, rig, repeat))
            save(run)
    return run


def _compile_ours() -> None:
    """As pip does when it installs the peers: where PYTHONDONTWRITEBYTECODE is set, a checkout would be compiled at
    every start."""
    for package in ("istos_worker", "supervisor"):
        compileall.compile_dir(ROOT / package, quiet=1)


def order(phases: Sequence[Phase], rigs: Sequence[Rig], repeats: int) -> Iterator[tuple[Phase, Rig, int]]:
    """In each repeat another system goes first. A fault phase of a peer is run once: it may take minutes."""
    for repeat in range(repeats):
        for phase in phases:
            for at in range(len(rigs)):
                rig = rigs[(at + repeat) % len(rigs)]
                once = phase.fault and not rig.system.ours
                if phase.applies(rig.system) and not (once and repeat):
                    yield phase, rig, repeat


@dataclass(slots=True)
class _Services:
    """Started when the first system needs them."""

    stack: contextlib.ExitStack
    sync: str
    redis: Redis | None = None
    postgres: Postgres | None = None

    def the_redis(self) -> Redis:
        if self.redis is None:
            self.redis = Redis(redis_server() or "redis-server", sync=self.sync)
            self.stack.callback(self.redis.stop)
        return self.redis

    def the_postgres(self) -> Postgres:
        if self.postgres is None:
            self.postgres = Postgres(postgres_bin() or Path())
            self.stack.callback(self.postgres.stop)
        return self.postgres


def _rigs(
    stack: contextlib.ExitStack, systems: Sequence[System], plan: Plan, folder: Path, sync: str, run: Run
) -> Iterator[Rig]:
    services = _Services(stack, sync)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for system in systems:
        own = folder / system.name
        own.mkdir()
        fast = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="istos-bench-", dir=memory)))
        try:
            broker = _broker(system, services, own)
        except (RuntimeError, subprocess.CalledProcessError) as failed:
            run.skipped[system.name] = f"its broker could not be set up: {failed}"
            continue
        run.systems[system.name] = _measuree(system, broker, services)
        rig = Rig(system, broker, plan, folder=own, fast=fast)
        stack.callback(rig.rest)
        yield rig


def _broker(system: System, services: _Services, folder: Path) -> Broker:
    match system.broker:
        case "memory" | "mesh" | "sqlite":
            return owner_of_ours(system, folder)
        case "istos" | "istos-sqlite":
            return owner_of_istos(system, folder)
        case "embedded":
            return EmbeddedBroker(folder)
        case "redis":
            return RedisBroker(services.the_redis())
        case "postgres":
            return PostgresBroker(services.the_postgres(), system)


def _measuree(system: System, broker: Broker, services: _Services) -> Measuree:
    versions = system.venv.versions(system.packages)
    if system.broker == "redis":
        versions["Redis"] = services.the_redis().version()
    if system.broker == "postgres":
        versions["PostgreSQL"] = services.the_postgres().version()
    return Measuree(
        title=system.title,
        ours=system.ours,
        policy=broker.policy,
        versions=versions,
    )


def _sample(phase: Phase, rig: Rig, repeat: int) -> Sample:
    begun = time.monotonic()
    made = Sample(system=rig.system.name, phase=phase.name, repeat=repeat, fault=phase.fault)
    try:
        measured = phase.run(rig)
        made = replace(
            made,
            figures={} if measured.lost and not phase.fault else measured.figures,
            lost=measured.lost,
            duplicated=measured.duplicated,
            notes=measured.notes,
        )
    except Unfinished as late:
        made = replace(made, failed=f"unfinished: {late}")
    except Exception as failed:
        # Whatever one system does, the others are still to be measured; its logs say more.
        said = f"{type(failed).__name__}: {failed}; its fleet: {rig.log_tail('fleet')}"
        made = replace(made, failed=said)
    finally:
        rig.rest()
    made = replace(made, took_s=round(time.monotonic() - begun, 1))
    _tell(made)
    return made


def _tell(sample: Sample) -> None:
    figures = ", ".join(f"{key} {value:,.4g}" for key, value in sample.figures.items())
    bad = f" LOST {sample.lost} DUPLICATED {sample.duplicated}" if sample.lost or sample.duplicated else ""
    line = f"{sample.repeat + 1} {sample.phase:9} {sample.system:15} {sample.took_s:5.1f} s  {figures}{bad}"
    print(line, *sample.notes, sample.failed, file=sys.stderr, flush=True)
