"""`istos-queue enqueue`, `result`, `cancel`, `why`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from istos_worker.cli.options import Duration, QueueCommand
from istos_worker.cli.queue_ask import Asking, asks_owner, json_option, prefix_argument, print_json
from istos_worker.errors import IstosError

if TYPE_CHECKING:
    from istos_worker.client import Client
    from istos_worker.client.client import Outcome
    from istos_worker.serialization import RawSerializer

_BATCH = 1000


@click.command(cls=QueueCommand)
@prefix_argument
@click.argument("body", metavar="JSON|-")
@click.option("--priority", type=int, default=0, help="Higher goes first.")
@click.option("--delay", "delay_s", type=Duration(), default=0, metavar="DUR", help="Not before this time.")
@click.option("--max-attempts", type=click.IntRange(min=1), metavar="N")
@click.option(
    "--expires", "expires_s", type=Duration(), metavar="DUR", help="Dead if not started within this time."
)
@click.option("--job-id", metavar="ID", help="Its id; the same again enqueues nothing.")
@click.option("--unique-key", metavar="KEY", help="Nothing is enqueued while a job with this key waits.")
@json_option
@asks_owner
def enqueue(prefix: str, body: str, as_json: bool, asking: Asking, **options: Any) -> None:
    """Put a job on a queue and print its id; with -, one job for each line of standard input.

    Where --job-id or --unique-key names a job that is there already, nothing is enqueued: it says so, and prints
    that job's id.
    """
    if body == "-":
        _enqueue_lines(prefix, as_json, asking, options)
        return
    raw = _checked(body.encode(), "the job's body")
    done = asking(
        lambda client: client.enqueue_once(
            prefix, raw, serializer=_raw(), timeout_s=asking.timeout_s, **options
        )
    )
    if as_json:
        print_json(done)
        return
    click.echo(done["job_id"])  # alone on standard output, for scripts
    if done["duplicate"]:
        click.echo(f"duplicate: nothing enqueued, {prefix} has this job already", err=True)


def _raw() -> RawSerializer:
    from istos_worker.serialization import RawSerializer

    return RawSerializer()


def _checked(raw: bytes, what: str) -> bytes:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as broken:
        raise click.UsageError(f"{what} is not JSON: {broken}") from broken
    return raw


def _enqueue_lines(prefix: str, as_json: bool, asking: Asking, options: dict[str, Any]) -> None:
    if options.pop("job_id") is not None or options.pop("unique_key") is not None:
        raise click.UsageError("--job-id and --unique-key belong to a single job, not to lines of input")
    count = 0

    async def ask(client: Client) -> None:
        nonlocal count
        lines = _lines(sys.stdin.buffer)
        with _progress() as advance:
            while batch := list(islice(lines, _BATCH)):
                ids = await client.enqueue_many(
                    prefix, batch, serializer=_raw(), timeout_s=asking.timeout_s, **options
                )
                count += len(ids)
                advance(len(ids))

    try:
        asking(ask)
    except BaseException:
        click.echo(f"{_jobs(count)} enqueued before this:", err=True)
        raise
    if as_json:
        print_json({"enqueued": count})
    else:
        click.echo(f"{_jobs(count)} enqueued on {prefix}")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines, all JSON, without the empty ones. Raises UsageError at the first that is not."""
    for number, line in enumerate(file, 1):
        raw = line.strip()
        if raw:
            yield _checked(raw, f"line {number}")


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A bar on a terminal where rich is installed, else nothing until the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        with _plain_progress() as advance:
            yield advance
        return
    columns = (TextColumn("enqueued"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("enqueued", total=None)
        yield lambda count: progress.advance(bar, count)


@contextmanager
def _plain_progress() -> Iterator[Callable[[int], None]]:
    total = 0

    def advance(count: int) -> None:
        nonlocal total
        total += count
        click.echo(f"\r{total} enqueued", err=True, nl=False)

    yield advance
    click.echo("\r", err=True, nl=False)


@click.command(cls=QueueCommand)
@prefix_argument
@click.argument("job_id")
@click.option(
    "--wait",
    "wait_s",
    type=Duration(),
    default=0,
    metavar="DUR",
    help="Wait this long for it to be finished.",
)
@json_option
@asks_owner
def result(prefix: str, job_id: str, wait_s: float, as_json: bool, asking: Asking) -> int:
    """What became of a job: its state, and its result where the queue keeps results.

    Exits with 1 for a job that is not known; with --wait, also unless it is done by then.
    """

    async def ask(client: Client) -> tuple[Outcome, str]:
        found = await client.result(prefix, job_id, wait_s=wait_s, timeout_s=asking.timeout_s)
        return found, await _why_unknown(client, prefix, job_id) if found["state"] == "unknown" else ""

    found, reason = asking(ask)
    if as_json:
        print_json(found)
    if reason:
        raise click.ClickException(f"{prefix}: job {job_id} {reason}")
    if not as_json:
        click.echo(found["state"])
        if found["result"] is not None:
            print_json(found["result"])
    return 1 if wait_s > 0 and found["state"] != "done" else 0


async def _why_unknown(client: Client, prefix: str, job_id: str) -> str:
    """Whether it is finished and forgotten, or never was: the owner may know."""
    try:
        return str((await client.why(prefix, job_id))["why"])
    except IstosError:  # an istos 0.3 owner, or a token that may ask for results only
        return "is not known here: it never was, or its record has aged out"


@click.command(cls=QueueCommand)
@prefix_argument
@click.argument("job_id")
@json_option
@asks_owner
def cancel(prefix: str, job_id: str, as_json: bool, asking: Asking) -> int:
    """Cancel a job: a waiting one at once, a running one by asking its worker."""
    found = asking(lambda client: client.cancel(prefix, job_id, timeout_s=asking.timeout_s))
    if as_json:
        print_json(found)
    elif found["state"] == "leased":
        click.echo("its worker has been asked to give it up")
    elif found["ok"]:
        click.echo("cancelled")
    else:
        click.echo(f"not cancelled: it is {found['state']}", err=True)
    return 0 if found["ok"] else 1


@click.command(cls=QueueCommand)
@prefix_argument
@click.argument("job_id")
@json_option
@asks_owner
def why(prefix: str, job_id: str, as_json: bool, asking: Asking) -> None:
    """What a job waits for, in one sentence. Exits with 1 for a job that is not known."""
    found = asking(lambda client: client.why(prefix, job_id, timeout_s=asking.timeout_s))
    if as_json:
        print_json(found)
    if found["state"] == "unknown":
        raise click.ClickException(f"{prefix}: job {job_id} {found['why']}")
    if not as_json:
        click.echo(found["why"])
