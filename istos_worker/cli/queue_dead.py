"""`istos-queue dead list|requeue|purge|export`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from istos_worker.cli.options import QueueCommand, QueueGroup
from istos_worker.cli.queue_ask import (
    Asking,
    asks_owner,
    json_option,
    prefix_argument,
    print_json,
    print_table,
)
from istos_worker.observability.bodies import readable

if TYPE_CHECKING:
    from istos_worker.client import Client

_PAGE = 200


@click.group(cls=QueueGroup)
def dead() -> None:
    """The dead letters of a queue: jobs that failed for good."""


async def _letters(
    client: Client, prefix: str, limit: int | None, timeout_s: float
) -> AsyncIterator[dict[str, Any]]:
    after, left = None, limit
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        page = await client.dead_page(prefix, limit=size, after=after, timeout_s=timeout_s)
        for job in page["jobs"][:size]:
            yield {**job, "data": readable(job["data"])}
        after = page.get("next")
        if after is None:
            return
        left = None if left is None else left - size


@dead.command("list", cls=QueueCommand)
@prefix_argument
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@json_option
@asks_owner
def list_(prefix: str, limit: int, as_json: bool, asking: Asking) -> None:
    """Show them, oldest first."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return [one async for one in _letters(client, prefix, limit, asking.timeout_s)]

    found = asking(ask)
    if as_json:
        print_json(found)
        return
    rows = [{**one, "data": orjson.dumps(one["data"]).decode()[:60]} for one in found]
    print_table(rows, ("job_id", "attempts", "last_error", "data"))


@dead.command(cls=QueueCommand)
@prefix_argument
@click.argument("file", type=click.File("wb", lazy=True), default="-")
@asks_owner
def export(prefix: str, file: IO[bytes], asking: Asking) -> None:
    """Write all of them to FILE (or stdout), one JSON object a line."""

    async def ask(client: Client) -> int:
        count = 0
        async for one in _letters(client, prefix, None, asking.timeout_s):
            file.write(orjson.dumps(one) + b"\n")
            count += 1
        return count

    count = asking(ask)
    file.flush()
    click.echo(f"{count} dead letter{'' if count == 1 else 's'} of {prefix} written", err=True)


@dead.command(cls=QueueCommand)
@prefix_argument
@click.argument("job_id", required=False)
@click.option("--all", "all_", is_flag=True, help="All of them.")
@asks_owner
def requeue(prefix: str, job_id: str | None, all_: bool, asking: Asking) -> None:
    """Make JOB_ID, or --all, ready again with its attempts reset."""
    chosen = _chosen(job_id, all_)
    count = asking(lambda client: client.dead_requeue(prefix, chosen, timeout_s=asking.timeout_s))
    _tell(count, chosen, prefix, "requeued")


@dead.command(cls=QueueCommand)
@prefix_argument
@click.argument("job_id", required=False)
@click.option("--all", "all_", is_flag=True, help="All of them.")
@asks_owner
def purge(prefix: str, job_id: str | None, all_: bool, asking: Asking) -> None:
    """Forget JOB_ID, or --all."""
    chosen = _chosen(job_id, all_)
    count = asking(lambda client: client.dead_purge(prefix, chosen, timeout_s=asking.timeout_s))
    _tell(count, chosen, prefix, "purged")


def _chosen(job_id: str | None, all_: bool) -> str | None:
    """None is all of them."""
    if (job_id is None) == (not all_):
        raise click.UsageError("name one JOB_ID, or give --all")
    return job_id


def _tell(count: int, job_id: str | None, prefix: str, done: str) -> None:
    if count == 0 and job_id is not None:
        raise click.ClickException(f"{prefix} has no dead letter {job_id}")
    click.echo(f"{count} {done}")
