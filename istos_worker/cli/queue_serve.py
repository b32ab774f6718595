"""`istos-queue serve`: an owner node. It holds queues and runs schedules; it runs no jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istos_worker.cli.options import Duration, QueueCommand, log_options, network_options, read_secret
from istos_worker.cli.queue_ask import QueueName
from istos_worker.errors import IstosError
from istos_worker.wire.keys import VERBS
from istos_worker.wire.settings import ZenohSettings
from supervisor.exits import ExitCode

if TYPE_CHECKING:
    from istos_worker.app import App
    from istos_worker.queue.role import QueueRole
    from istos_worker.storage import Storage
    from istos_worker.wire.auth import TokenAuthorizer

log = logging.getLogger(__name__)

DEFAULT_FOLDER = Path("istos-data")
DEFAULT_STORAGE = f"sqlite:///{DEFAULT_FOLDER}/queues.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the command line asks for."""

    target: str | None
    queues: tuple[str, ...]
    storage: str | None
    network: ZenohSettings
    token: str | None = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    ha: bool
    lease_s: float
    max_attempts: int
    retry_backoff_s: float
    keep_results: bool
    result_ttl_s: float


@click.command(cls=QueueCommand)
@click.argument("target", required=False)
@click.option(
    "--queue",
    "queues",
    type=QueueName(),
    multiple=True,
    metavar="PREFIX",
    help="Serve this queue (repeatable); with TARGET, only these.",
)
@click.option(
    "--storage",
    metavar="URL",
    help=f"Where jobs are kept: memory:, sqlite:///path.  [default: the target's own, or {DEFAULT_STORAGE}]",
)
@click.option("--ha", is_flag=True, help="One of several owners (this version: warns, and serves alone).")
@click.option(
    "--authorize-token",
    "tokens",
    multiple=True,
    metavar="T[=VERBS]",
    help="Serve only callers with this token; =verb,verb narrows what it may do (repeatable).",
)
@click.option(
    "--authorize-token-file",
    "token_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="F",
    help="The same, one a line (repeatable).",
)
@click.option(
    "--lease",
    "lease_s",
    type=Duration(low_s=0.1),
    default="30s",
    show_default=True,
    metavar="DUR",
    help="With --queue: how long a silent worker keeps a job.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="With --queue: how often a job is tried before it is a dead letter.",
)
@click.option(
    "--retry-backoff",
    "retry_backoff_s",
    type=Duration(),
    default="1s",
    show_default=True,
    metavar="DUR",
    help="With --queue: pause before the first retry; it doubles.",
)
@click.option("--keep-results", is_flag=True, help="With --queue: keep what handlers return.")
@click.option(
    "--result-ttl",
    "result_ttl_s",
    type=Duration(),
    default="1h",
    show_default=True,
    metavar="DUR",
    help="With --queue: how long.",
)
@log_options
@network_options
def serve(
    target: str | None,
    queues: tuple[str, ...],
    tokens: tuple[str, ...],
    token_files: tuple[Path, ...],
    log_level: str,
    log_format: str,
    **options: object,
) -> int:
    """Own the queues that TARGET (module or module:attribute) declares, or those given by --queue, until TERM."""
    if target is None and not queues:
        raise click.UsageError("name a TARGET or at least one --queue PREFIX")
    lines = [line for path in token_files for line in _token_lines(path)]
    served = Served(target=target, queues=queues, tokens=(*tokens, *lines), **options)  # type: ignore[arg-type]
    from istos_worker.observability.logs import Logs

    with Logs(level=log_level, format_=log_format).kept("owner"):
        return _serve(served)


def _token_lines(path: Path) -> list[str]:
    return [line.strip() for line in read_secret(path, "--authorize-token-file").splitlines() if line.strip()]


def _serve(served: Served) -> int:
    app: App | None = None
    if served.target is not None:
        from istos_worker.fleet.target import LoadRefused, load_apps, loading

        targets = (served.target,)
        try:
            with loading(targets):
                (app,) = load_apps(targets)
        except LoadRefused as refused:
            click.echo(f"istos-queue: {refused}", err=True)
            return ExitCode.NO_IMPORT
    try:
        from istos_worker.fleet.loops import run_owner_in_loop

        return run_owner_in_loop(_run(served, app))
    except (IstosError, OSError, ValueError) as failed:
        click.echo(f"istos-queue: {failed}", err=True)
        return ExitCode.UNEXPECTED


async def _run(served: Served, app: App | None) -> int:
    from istos_worker.app.serving import beating, client_of, owning
    from istos_worker.wire.session import Session

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        storage, told = _storage(served, app)
        roles = _roles(served, app, storage)
        for role in roles:
            role.ha = role.ha or served.ha
        network = _network(served, app)
        session = await Session.open(network)
        stack.push_async_callback(session.aclose)
        if storage is not None:
            stack.push_async_callback(storage.aclose)
        await stack.enter_async_context(owning(roles, session))
        if app is not None and app.schedules:
            await stack.enter_async_context(client_of(app, session, token=served.token))
            await stack.enter_async_context(beating(app, roles))
        names = ", ".join(role.prefix for role in roles)
        where = ", ".join(network.listen or network.connect) or "loopback, found by scouting"
        log.info("owner ready: queues %s; storage %s; at %s", names, told, where)
        await stopped.wait()
        log.info("stopping")
    return 0


def _network(served: Served, app: App | None) -> ZenohSettings:
    """The command's settings; where it says nothing at all, the application's own."""
    network = served.network
    if app is not None and app.config is not None and network == ZenohSettings():
        network = app.config
    if network.mode is None and network.connect and network.listen:
        # An owner is there for others to reach: with both it is a peer, that connects and listens.
        return network.over(mode="peer")
    return network


def _storage(served: Served, app: App | None) -> tuple[Storage | None, str]:
    """The storage for all queues, or None for the application's own; and what to call it."""
    from istos_worker.storage import open_storage
    from istos_worker.storage.memory import MemoryStorage

    if served.storage is not None:
        return open_storage(served.storage, writes_in_loop=True), served.storage
    if app is not None and not isinstance(app.storage, MemoryStorage):
        return None, f"of the application ({type(app.storage).__name__})"
    DEFAULT_FOLDER.mkdir(parents=True, exist_ok=True)
    return open_storage(DEFAULT_STORAGE, writes_in_loop=True), DEFAULT_STORAGE


def _roles(served: Served, app: App | None, storage: Storage | None) -> list[QueueRole]:
    authorizer = _authorizer(served.tokens)
    if app is None:
        assert storage is not None
        return [_plain_role(served, prefix, storage, authorizer) for prefix in served.queues]
    unknown = [prefix for prefix in served.queues if prefix not in app.queues]
    if unknown or not app.queues:
        there = ", ".join(app.queues) or "none: declare one with app.queue(prefix)"
        wanted = f" {unknown[0]!r}" if unknown else ""
        raise IstosError(f"{served.target} declares no queue{wanted}; there are: {there}")
    chosen = served.queues or tuple(app.queues)
    return [
        app.queues[prefix].served(storage=storage, authorizer=authorizer, token=served.token)
        for prefix in chosen
    ]


def _plain_role(
    served: Served, prefix: str, storage: Storage, authorizer: TokenAuthorizer | None
) -> QueueRole:
    from istos_worker.queue.role import QueueRole
    from istos_worker.queue.store import QueueStore

    store = QueueStore(prefix, storage, keep_results=served.keep_results, result_ttl_s=served.result_ttl_s)
    return QueueRole(
        prefix,
        store,
        lease_s=served.lease_s,
        max_attempts=served.max_attempts,
        retry_backoff_s=served.retry_backoff_s,
        ha=served.ha,
        authorizer=authorizer,
        token=served.token,
    )


def _authorizer(tokens: Sequence[str]) -> TokenAuthorizer | None:
    from istos_worker.wire.auth import TokenAuthorizer

    return TokenAuthorizer(dict(map(_token_rights, tokens))) if tokens else None


def _token_rights(told: str) -> tuple[str, set[str]]:
    """`token` or `token=verb,verb`; a token may itself contain equals signs, verbs do not."""
    token, equals, verbs = told.rpartition("=")
    named = {verb.strip() for verb in verbs.split(",")}
    if equals and token and named <= VERBS | {"*"}:
        return token, named
    return told, {"*"}
