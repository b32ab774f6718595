"""What options lead to: a check, everything in this process, or a fleet, whose plan is made here and carried out in
worker_fleet. Imports no application code; `--solo` is the exception, and its module is imported only then."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from istos_worker.cli.worker_fleet import Fleet, run_fleet
from istos_worker.cli.worker_here import default_drain_s, is_under_honcho
from istos_worker.cli.worker_options import Options
from istos_worker.cli.worker_values import concurrency_of
from istos_worker.errors import BadRequestError
from istos_worker.fleet.plan import VARIABLE, Deadlines, LogSettings, Plan
from istos_worker.wire.keys import queue_prefix

if TYPE_CHECKING:
    from istos_worker.fleet.solo_probes import Probes

HandOver = Callable[[Fleet | None], None]
HONCHO_OWNER_STOP_S = 0.8


def start(options: Options, hand_over: HandOver | None = None) -> int:
    """Runs until the end; the exit code. `hand_over`: another process waits to be told what fleet it is to run, or None
    when it is something else that it must do."""
    _refuse_nonsense(options)
    fleet = (
        None if options.check or options.solo else Fleet(options=options, plan=plan_of(options, os.environ))
    )
    if hand_over is not None:
        hand_over(fleet)
        return 0
    if fleet is not None:
        return run_fleet(fleet)
    return _run_check(options) if options.check else _run_solo(options)


def _refuse_nonsense(options: Options) -> None:
    if options.max_jobs_jitter and options.max_jobs is None:
        raise click.UsageError("--max-jobs-jitter needs --max-jobs")
    if options.reload and importlib.util.find_spec("watchfiles") is None:
        raise click.UsageError("--reload needs watchfiles: pip install 'istos-worker[reload]'")


def plan_of(options: Options, env: Mapping[str, str]) -> Plan:
    owns = options.embedded or (options.solo and not options.network.connect)
    plan = Plan(
        targets=options.targets,
        queues=_prefixes(options.queue),
        concurrency=concurrency_of(options.concurrency),
        deadlines=_deadlines(options, env),
        network=options.network,
        token=options.token,
        data=options.data if owns else None,
        burst=options.burst,
        procs=1 if options.solo else options.procs,
        log=LogSettings(level=options.log_level.lower(), format=options.log_format),
    )
    try:
        plan.dump().encode()
    except UnicodeEncodeError as unspeakable:
        raise click.UsageError("TARGET and options must be UTF-8 text") from unspeakable
    return plan


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


def _probes(options: Options) -> Probes | None:
    if options.metrics is None:
        return None
    from istos_worker.cli.worker_metrics import solo_page
    from istos_worker.fleet.solo_probes import Probes

    host, port = options.metrics
    return Probes(host=host, port=port, page=solo_page)


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
            return run_solo(plan, _probes(options))
    except OSError as refused:
        named = f"--pidfile {options.pidfile}: " if refused.filename == str(options.pidfile) else ""
        raise click.ClickException(f"{named}{refused.strerror}" if named else str(refused)) from refused
