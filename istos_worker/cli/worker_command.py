"""The options of `istos-worker TARGET...`. What they lead to is in worker_run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from istos_worker.cli.options import (
    Duration,
    ListedText,
    Size,
    WorkerCommand,
    log_options,
    network_options,
    pyproject_table,
)
from istos_worker.cli.worker_values import ConcurrencyValue, HostPort, Procs
from istos_worker.wire.settings import ZenohSettings

PROGRAM = "istos-worker"


def _first_words(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in ("ctl",) if word.startswith(incomplete) and not ctx.params.get("targets")]


@click.command(
    PROGRAM,
    cls=WorkerCommand,
    epilog="A running fleet is spoken to with: istos-worker ctl status|reload|quiet|resume|scale|stacks|stop. "
    "Every option is also read from ISTOS_WORKER_<OPTION> and from [tool.istos-worker] in pyproject.toml.",
)
@click.argument("targets", nargs=-1, metavar="TARGET...", shell_complete=_first_words)
@click.option(
    "--procs",
    type=Procs(),
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Worker processes; auto: the CPUs usable here.",
)
@click.option(
    "--concurrency",
    type=ConcurrencyValue(),
    multiple=True,
    metavar="N|PREFIX=N",
    help="Claim loops per queue per process (repeatable).  [default: 10]",
)
@click.option(
    "--queue",
    type=ListedText("prefix"),
    multiple=True,
    metavar="PREFIX",
    help="Consume only this queue (repeatable).",
)
@network_options
@click.option(
    "--embedded", is_flag=True, help="Also run the owner of the declared queues, as a supervised process."
)
@click.option(
    "--data",
    default="./istos-data",
    show_default=True,
    metavar="PATH",
    help="Folder of the embedded owner's files; :memory: for none.",
)
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=Duration(),
    metavar="DUR",
    help="How long running jobs may finish after TERM.  [default: 25s; 4s under honcho]",
)
@click.option("--max-jobs", type=click.IntRange(min=1), metavar="N", help="Replace a worker after N jobs.")
@click.option(
    "--max-jobs-jitter", type=click.IntRange(min=0), default=0, metavar="N", help="Plus up to N, at random."
)
@click.option(
    "--max-memory",
    "max_memory_bytes",
    type=Size(),
    metavar="SIZE",
    help="Replace a worker whose private memory is above this.",
)
@click.option(
    "--max-lifetime",
    "max_lifetime_s",
    type=Duration(low_s=0.001),
    metavar="DUR",
    help="Replace a worker of this age.",
)
@click.option(
    "--boot-timeout",
    "boot_timeout_s",
    type=Duration(low_s=0.001),
    default="60s",
    show_default=True,
    metavar="DUR",
    help="How long a worker may take to become ready.",
)
@click.option(
    "--stall-timeout",
    "stall_timeout_s",
    type=Duration(low_s=0.001),
    default="30s",
    show_default=True,
    metavar="DUR",
    help="Longest block of a worker's event loop.",
)
@click.option(
    "--job-timeout",
    "job_timeout_s",
    type=Duration(low_s=0.001),
    metavar="DUR",
    help="Default time limit of one job.",
)
@click.option("--solo", is_flag=True, help="Everything in this one process: breakpoint() works.")
@click.option("--burst", is_flag=True, help="Exit 0 once the consumed queues are empty.")
@click.option(
    "--reload",
    is_flag=True,
    help="Development: reload when source files change.",
)
@click.option(
    "--metrics", type=HostPort(), metavar="HOST:PORT", help="Serve /metrics, /livez and /readyz here."
)
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket for `istos-worker ctl`.  [default: in the runtime folder]",
)
@click.option(
    "--pidfile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Write the supervisor's pid here.",
)
@log_options
@click.option("--check", is_flag=True, help="Import the target, print what would run, and exit.")
@click.version_option(package_name="istos-worker", prog_name=PROGRAM)
def run(targets: tuple[str, ...], network: ZenohSettings, token: str | None, **values: Any) -> int:
    """Run the workers that TARGET (module or module:attribute) declares."""
    from istos_worker.cli.worker_options import Options
    from istos_worker.cli.worker_run import start

    targets = targets or _configured_targets()
    if not targets:
        raise click.UsageError("no TARGET: name the module that has your App, such as myapp.tasks")
    hand_over = click.get_current_context().obj
    return start(Options(targets=targets, network=network, token=token, **values), hand_over)


def _configured_targets() -> tuple[str, ...]:
    from_env = os.environ.get("ISTOS_WORKER_TARGET", "").replace(",", " ").split()
    if from_env:
        return tuple(from_env)
    table = pyproject_table(Path.cwd())
    named = table.get("target", table.get("targets", ()))
    if isinstance(named, str):
        return (named,)
    if not isinstance(named, (list, tuple)):
        raise click.UsageError(f"[tool.istos-worker] target must be text or a list, got {named!r}")
    return tuple(str(one) for one in named)
