"""`istos-worker ctl`: talks to a running supervisor over its control socket. Knows no jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from istos_worker.cli.worker_here import live_controls

REACH_S = 10.0
RELOAD_WAIT_S = 600.0


@click.group("ctl")
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    envvar="ISTOS_WORKER_CONTROL",
    metavar="PATH",
    help="The supervisor's socket; not needed when one fleet of yours runs here.",
)
@click.pass_context
def ctl(ctx: click.Context, control: Path | None) -> None:
    """Talk to a running supervisor."""
    ctx.obj = control


@ctl.command()
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.pass_obj
def status(control: Path | None, as_json: bool) -> None:
    """What runs: workers, their state and figures."""
    found = _ask(control, "status")["status"]
    click.echo(json.dumps(found, indent=2) if as_json else render_status(found))


@ctl.command()
@click.option("--wait", is_flag=True, help="Return when the reload is complete; exit 1 if it failed.")
@click.pass_obj
def reload(control: Path | None, wait: bool) -> None:
    """Roll the fleet over to the code on disk, validated first."""
    _ask(control, "reload", wait_s=RELOAD_WAIT_S if wait else REACH_S, **({"wait": True} if wait else {}))
    click.echo("reloaded" if wait else "reload begun")


@ctl.command()
@click.pass_obj
def quiet(control: Path | None) -> None:
    """Stop claiming, keep running."""
    _ask(control, "quiet")
    click.echo("quiet")


@ctl.command()
@click.pass_obj
def resume(control: Path | None) -> None:
    """Undo quiet."""
    _ask(control, "resume")
    click.echo("resumed")


@ctl.command(context_settings={"ignore_unknown_options": True})  # -1 is a wrong number, not an option
@click.argument("procs", type=click.IntRange(0, 500), metavar="N")
@click.pass_obj
def scale(control: Path | None, procs: int) -> None:
    """Run N worker processes."""
    _ask(control, "scale", procs=procs)
    click.echo(f"scaling to {procs}")


@ctl.command()
@click.pass_obj
def stacks(control: Path | None) -> None:
    """Write every worker's stacks and tasks to the fleet's log."""
    _ask(control, "stacks")
    click.echo("asked for; they are written to the fleet's log")


@ctl.command()
@click.pass_obj
def stop(control: Path | None) -> None:
    """Drain and stop, as TERM does."""
    _ask(control, "stop")
    click.echo("stopping")


def _ask(control: Path | None, command: str, *, wait_s: float = REACH_S, **arguments: Any) -> dict[str, Any]:
    """The answer. Prints the error and exits 1 when there is none, or it is not ok."""
    from supervisor.control_client import ask

    path = control or _only_control()
    try:
        answer: dict[str, Any] = ask(path, command, wait_s=wait_s, **arguments)
    except OSError as refused:
        raise click.ClickException(f"no fleet answers at {path}: {refused}") from refused
    if not answer.get("ok"):
        click.echo(f"istos-worker ctl: {answer.get('error', 'refused')}", err=True)
        sys.exit(1)
    return answer


def _only_control() -> Path:
    found = live_controls()
    match found:
        case []:
            raise click.ClickException(
                "no fleet of this user is running here; name its socket with --control"
            )
        case [only]:
            return only
        case _:
            listed = "".join(f"\n  --control {path}" for path in found)
            raise click.ClickException(f"several fleets are running, say which:{listed}")


def render_status(status: dict[str, Any]) -> str:
    """For people: one line on the fleet, one on the owner, a table of workers, the totals."""
    ready = "ready" if status["ready"] else "not ready"
    lines = [
        f"{status['state']}, {ready}: pid {status['pid']}, generation {status['generation']}, "
        f"{len(status['workers'])} of {status['procs']} workers, up {status['uptime_s']:.0f} s"
    ]
    owner = status.get("companion")
    if owner is not None:
        lines.append(
            f"owner: pid {owner['pid']}, {'ready' if owner['ready'] else 'not ready'}, restarts {owner['restarts']}"
        )
    lines += _table([_worker_row(worker) for worker in status["workers"]])
    lines.append(_totals(status))
    if status.get("last_reload_error"):
        lines.append(f"last reload failed: {status['last_reload_error']}")
    return "\n".join(lines)


def _totals(status: dict[str, Any]) -> str:
    counts = {{"deaths": "gone"}.get(name, name): number for name, number in status["totals"].items()}
    return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in counts.items())


def _worker_row(worker: dict[str, Any]) -> dict[str, str]:
    memory = worker["private_bytes"]
    return {
        "worker": str(worker["slot"]),
        "pid": str(worker["pid"]),
        "gen": str(worker["generation"]),
        "stage": worker["stage"] if worker["serving"] or worker["stage"] != "ready" else "ready, no owner",
        "busy": f"{worker['busy']}/{worker['slots']}",
        "done": str(worker["done"]),
        "age": f"{worker['age_s']:.0f} s",
        "memory": "" if memory is None else f"{memory / 2**20:.1f} MiB",
    }


def _table(rows: list[dict[str, str]]) -> list[str]:
    if not rows:
        return []
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
