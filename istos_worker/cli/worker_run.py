"""From options to a running fleet: makes the plan and the supervisor's settings, and hands over. Imports no
application code; `--solo` is the exception, and its module is imported only then."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istos_worker.cli.worker_here import RuntimeDir, default_drain_s, is_under_honcho, runtime_dir
from istos_worker.cli.worker_values import concurrency_of
from istos_worker.errors import BadRequestError
from istos_worker.fleet.plan import VARIABLE, Deadlines, LogSettings, Plan
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.settings import ZenohSettings

if TYPE_CHECKING:
    from supervisor.embryo import Embryo

log = logging.getLogger(__name__)
HONCHO_OWNER_STOP_S = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, environment and table as one value; names are the options', with their units."""

    targets: tuple[str, ...]
    procs: int
    concurrency: tuple[tuple[str | None, int], ...]
    queue: tuple[str, ...]
    network: ZenohSettings
    token: str | None
    embedded: bool
    data: str
    drain_timeout_s: float | None
    max_jobs: int | None
    max_jobs_jitter: int
    max_memory_bytes: int | None
    max_lifetime_s: float | None
    boot_timeout_s: float
    stall_timeout_s: float
    job_timeout_s: float | None
    solo: bool
    burst: bool
    reload: bool
    metrics: tuple[str, int] | None
    control: Path | None
    pidfile: Path | None
    log_level: str
    log_format: str
    check: bool


def start(options: Options, embryo: Embryo | None = None) -> int:
    """Runs until the end; the exit code. `embryo` becomes the zygote, if there is to be one."""
    _refuse_nonsense(options)
    if options.check:
        return _run_check(options)
    if options.solo:
        return _run_solo(options)
    return _run_fleet(options, embryo)


def _refuse_nonsense(options: Options) -> None:
    if options.max_jobs_jitter and options.max_jobs is None:
        raise click.UsageError("--max-jobs-jitter needs --max-jobs")
    if options.reload and importlib.util.find_spec("watchfiles") is None:
        raise click.UsageError("--reload needs watchfiles: pip install 'istos-worker[reload]'")
    if options.metrics is not None and options.solo:
        raise click.UsageError("--metrics is served by the supervisor, and --solo has none")


def plan_of(options: Options, env: Mapping[str, str], *, runtime: RuntimeDir | None = None) -> Plan:
    owns = options.embedded or (options.solo and not options.network.connect)
    return Plan(
        targets=options.targets,
        queues=_prefixes(options.queue),
        concurrency=concurrency_of(options.concurrency),
        deadlines=_deadlines(options, env),
        network=options.network,
        token=options.token,
        data=options.data if owns else None,
        owner_endpoint=runtime.owner_endpoint if runtime is not None and options.embedded else None,
        burst=options.burst,
        procs=1 if options.solo else options.procs,
        log=LogSettings(
            level=options.log_level.lower(),
            format=options.log_format,
            lock=None if runtime is None else str(runtime.log_lock),
        ),
        figures=None if runtime is None else str(runtime.figures),
    )


def _prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(queue_prefix(name) for name in names))
    except BadRequestError as wrong:
        raise click.UsageError(wrong.message) from wrong


def _deadlines(options: Options, env: Mapping[str, str]) -> Deadlines:
    drain_s = default_drain_s(env) if options.drain_timeout_s is None else options.drain_timeout_s
    owner_stop_s = HONCHO_OWNER_STOP_S if is_under_honcho(env) else Deadlines().owner_stop_s
    return Deadlines(drain_s=drain_s, owner_stop_s=owner_stop_s, job_timeout_s=options.job_timeout_s)


def _run_check(options: Options) -> int:
    """In a process of its own: this one stays without application code."""
    from supervisor.early import release_signals

    release_signals()
    environ = {**os.environ, VARIABLE: plan_of(options, os.environ).dump()}
    return subprocess.run(
        [sys.executable, "-m", "istos_worker.fleet.check"], env=environ, check=False
    ).returncode


def _run_solo(options: Options) -> int:
    from istos_worker.fleet.solo import run_solo
    from supervisor.early import release_signals
    from supervisor.pidfile import Pidfile

    if options.reload:
        from istos_worker.cli.worker_reload import rerun_on_change

        return rerun_on_change(sys.argv)
    plan = plan_of(options, os.environ)
    release_signals()
    try:
        with contextlib.nullcontext() if options.pidfile is None else Pidfile(options.pidfile):
            return run_solo(plan)
    except OSError as refused:
        named = f"--pidfile {options.pidfile}: " if refused.filename == str(options.pidfile) else ""
        raise click.ClickException(f"{named}{refused.strerror}" if named else str(refused)) from refused


def _run_fleet(options: Options, embryo: Embryo | None) -> int:
    # asyncio does without it, and a supervisor speaks no TLS: 1.3 MB and 9 ms less.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    from istos_worker.cli.worker_fleet import run_fleet

    with runtime_dir() as runtime:
        return run_fleet(options, plan_of(options, os.environ, runtime=runtime), runtime, embryo)
