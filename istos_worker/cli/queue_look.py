"""`istos-queue stats`, `workers`, `pause`, `resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from istos_worker.cli.options import QueueCommand
from istos_worker.cli.queue_ask import (
    Asking,
    QueueName,
    asks_owner,
    json_option,
    prefix_argument,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from istos_worker.client import Client

_COUNTS = ("ready", "delayed", "leased", "done", "dead", "cancelled")
_COLUMNS = ("queue", *_COUNTS, "workers", "oldest_s", "paused")


@click.command(cls=QueueCommand)
@click.argument("prefixes", nargs=-1, required=True, type=QueueName(), metavar="PREFIX...")
@json_option
@asks_owner
def stats(prefixes: Sequence[str], as_json: bool, asking: Asking) -> None:
    """How many jobs each queue holds, in which state."""

    async def ask(client: Client) -> list[dict[str, Any]]:
        return list(
            await asyncio.gather(*(client.stats(one, timeout_s=asking.timeout_s) for one in prefixes))
        )

    found = asking(ask)
    if as_json:
        print_json(dict(zip(prefixes, found, strict=True)))
        return
    rows = [
        {
            "queue": prefix,
            **one["counts"],
            "workers": one["workers"],
            "oldest_s": one["oldest_ready_s"],
            "paused": one["paused"],
        }
        for prefix, one in zip(prefixes, found, strict=True)
    ]
    print_table(rows, _COLUMNS)


@click.command(cls=QueueCommand)
@prefix_argument
@json_option
@asks_owner
def workers(prefix: str, as_json: bool, asking: Asking) -> None:
    """The worker processes of a queue, and how many jobs each holds."""
    found = asking(lambda client: client.workers(prefix, timeout_s=asking.timeout_s))
    if as_json:
        print_json(found)
    else:
        print_table(found, ("worker", "held", "up"))


@click.command(cls=QueueCommand)
@prefix_argument
@asks_owner
def pause(prefix: str, asking: Asking) -> None:
    """Deliver nothing more until `resume`. Running jobs finish, new ones are taken in."""
    asking(lambda client: client.pause(prefix, timeout_s=asking.timeout_s))
    click.echo(f"{prefix} is paused")


@click.command(cls=QueueCommand)
@prefix_argument
@asks_owner
def resume(prefix: str, asking: Asking) -> None:
    """Deliver again."""
    asking(lambda client: client.resume(prefix, timeout_s=asking.timeout_s))
    click.echo(f"{prefix} delivers again")
