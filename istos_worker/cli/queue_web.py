"""`istos-queue web`: the dashboard."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istos_worker.cli.options import ListedText, QueueCommand, log_options, read_secret
from istos_worker.cli.queue_ask import Asking, QueueName, asks_owner
from istos_worker.cli.worker_values import HostPort
from supervisor.exits import ExitCode

if TYPE_CHECKING:
    from istos_worker.observability.guard import Guard

log = logging.getLogger(__name__)

_CONNECT_S = 1.0


@click.command(cls=QueueCommand)
@click.argument("prefixes", nargs=-1, type=QueueName(), metavar="[PREFIX]...")
@click.option(
    "--listen",
    "--web-listen",  # its name in the environment and in pyproject.toml, where `listen` is the owner's
    "web_listen",
    type=HostPort(),
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where browsers find it; beyond loopback it needs a token.",
)
@click.option("--web-token", metavar="T", help="Show data only to those who have this token.")
@click.option(
    "--web-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="Read that token from this file.",
)
@click.option(
    "--allow-host",
    "allowed",
    type=ListedText("name"),
    multiple=True,
    metavar="NAME",
    help="Answer to this host name too, such as a proxy's (repeatable).",
)
@click.option("--read-only", is_flag=True, help="Show, and change nothing.")
@log_options
@functools.partial(asks_owner, listens=False)
def web(
    prefixes: Sequence[str],
    web_listen: tuple[str, int],
    web_token: str | None,
    web_token_file: Path | None,
    allowed: Sequence[str],
    read_only: bool,
    log_level: str,
    log_format: str,
    asking: Asking,
) -> int:
    """A dashboard in the browser: queues, workers and dead letters, all that are found or each PREFIX, until TERM.

    It can requeue and purge dead letters, cancel jobs, pause and resume queues, with the rights that --token has at the
    owners. It needs no internet.
    """
    if web_token_file is not None:
        if web_token is not None:
            raise click.UsageError("give --web-token or --web-token-file, not both")
        web_token = read_secret(web_token_file, "--web-token-file")
    guard = _guard(web_listen[0], web_token, allowed)
    from istos_worker.observability.logs import Logs

    with Logs(level=log_level, format_=log_format).kept("web"):
        try:
            asyncio.run(_run(prefixes, web_listen, guard, read_only, asking))
        except OSError as failed:
            click.echo(f"istos-queue: cannot listen at {web_listen[0]}:{web_listen[1]}: {failed}", err=True)
            return ExitCode.UNEXPECTED
    return 0


def _guard(host: str, token: str | None, allowed: Sequence[str]) -> Guard:
    from istos_worker.observability.guard import Guard

    try:
        return Guard.of(host, token=token, allowed=allowed)
    except ValueError as refused:
        raise click.UsageError(f"{refused} (--web-token-file F, or ISTOS_QUEUE_WEB_TOKEN)") from refused


async def _run(
    prefixes: Sequence[str], listen: tuple[str, int], guard: Guard, read_only: bool, asking: Asking
) -> None:
    from istos_worker.observability.dashboard import Dashboard
    from istos_worker.observability.http import Server
    from istos_worker.observability.survey import Survey

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    client = asking.client(connect_timeout_s=_CONNECT_S)
    async with Survey(client, named=prefixes) as survey:
        dashboard = Dashboard(survey, guard, timeout_s=asking.timeout_s, read_only=read_only)
        async with Server(*listen, dashboard.answer) as server:
            host = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
            log.info("dashboard ready: http://%s:%d/", host, server.port)
            trouble = (await dashboard.look()).trouble
            if trouble:
                log.warning("%s; it will be looked for whenever somebody looks", trouble)
            await stopped.wait()
            log.info("stopping")
