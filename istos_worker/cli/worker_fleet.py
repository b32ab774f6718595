"""Joins the supervisor to the fleet: commands, limits, hooks, the log. The process that runs this stays small: no
click, and nothing else that only a command line needs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from istos_worker.cli.worker_here import RuntimeDir, runtime_dir
from istos_worker.cli.worker_options import Options
from istos_worker.fleet.plan import VARIABLE, Plan
from supervisor.settings import Command, Companion, Names, Recycling, Settings, Timeouts

if TYPE_CHECKING:
    from supervisor.embryo import Embryo

log = logging.getLogger("istos_worker.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a command line asks for, but for what only the process that runs it can know."""

    options: Options
    plan: Plan


def run_fleet(fleet: Fleet, embryo: Embryo | None = None) -> int:
    """Runs until the end; the exit code. `embryo` becomes the zygote. Raises OSError."""
    # asyncio does without it, and a supervisor speaks no TLS: 1.3 MB and 9 ms less.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    with runtime_dir() as runtime:
        return _run_in(runtime, fleet.options, _placed(fleet.plan, runtime, fleet.options), embryo)


def _placed(plan: Plan, runtime: RuntimeDir, options: Options) -> Plan:
    return replace(
        plan,
        owner_endpoint=runtime.owner_endpoint if options.embedded else None,
        log=replace(plan.log, lock=str(runtime.log_lock)),
        figures=str(runtime.figures),
    )


def _run_in(runtime: RuntimeDir, options: Options, plan: Plan, embryo: Embryo | None) -> int:
    from istos_worker.cli.worker_hooks import FleetHooks
    from istos_worker.observability.logs import Logs
    from supervisor.main import run

    with Logs(**plan.log.named()).kept("supervisor") as writer, _reloader(options):
        log.info(
            "workers: %d, of %s; %s",
            plan.procs,
            ", ".join(plan.targets),
            plan.deadlines.explained(embedded=options.embedded),
        )
        hooks = FleetHooks(runtime.figures, lines_lost=lambda: writer.lost)
        return run(settings_of(options, plan, runtime), hooks, embryo)


def settings_of(options: Options, plan: Plan, runtime: RuntimeDir) -> Settings:
    environ = {**os.environ, VARIABLE: plan.dump()}
    return Settings(
        procs=options.procs,
        zygote=_module("istos_worker.fleet.zygote", environ),
        companion=_owner(environ, plan) if options.embedded else None,
        timeouts=Timeouts(
            drain_s=plan.deadlines.drain_s, boot_s=options.boot_timeout_s, stall_s=options.stall_timeout_s
        ),
        recycling=Recycling(
            max_units=options.max_jobs,
            max_units_jitter=options.max_jobs_jitter,
            max_memory_bytes=options.max_memory_bytes,
            max_lifetime_s=options.max_lifetime_s,
        ),
        name="istos-worker",
        pidfile=options.pidfile,
        control=options.control or runtime.control,
        endpoint=options.metrics,
        burst=options.burst,
        names=Names(pidfile="--pidfile", control="--control", endpoint="--metrics"),
    )


def _owner(environ: dict[str, str], plan: Plan) -> Companion:
    return Companion(
        command=_module("istos_worker.fleet.owner", environ), stop_timeout_s=plan.deadlines.owner_stop_s
    )


def _module(name: str, environ: dict[str, str]) -> Command:
    return Command(argv=(sys.executable, "-m", name), env=environ)


@contextlib.contextmanager
def _reloader(options: Options) -> Iterator[None]:
    if not options.reload:
        yield
        return
    from istos_worker.cli.worker_reload import hup_on_change

    with hup_on_change(os.getpid()):
        yield
