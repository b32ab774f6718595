"""`istos-queue top`: queues and workers, live."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from istos_worker.cli.options import Duration, QueueCommand
from istos_worker.cli.queue_ask import Asking, QueueName, asks_owner, json_option, print_json
from istos_worker.errors import OwnerUnreachable

if TYPE_CHECKING:
    from istos_worker.observability.picture import Picture
    from istos_worker.observability.survey import Survey

_CONNECT_S = 1.0
_WIDE = 200
"""Columns of a frame that is not shown on a terminal."""


@click.command(cls=QueueCommand)
@click.argument("prefixes", nargs=-1, type=QueueName(), metavar="[PREFIX]...")
@click.option(
    "--interval",
    "interval_s",
    type=Duration(low_s=0.1),
    default="1s",
    show_default=True,
    metavar="DUR",
    help="How often it looks.",
)
@click.option("--once", is_flag=True, help="Print one frame, measured over --interval, and end.")
@json_option
@asks_owner
def top(prefixes: Sequence[str], interval_s: float, once: bool, as_json: bool, asking: Asking) -> None:
    """Queues and their workers, live: all that are found, or each PREFIX. q or Ctrl-C leaves.

    --json prints one frame as JSON (it implies --once).
    """
    once = once or as_json
    if not as_json:
        _check_rich()
    if not once and not sys.stdout.isatty():
        raise click.UsageError("top needs a terminal; --once prints one frame, --json one for programs")
    if not once:
        asyncio.run(_live(asking, prefixes, interval_s))
        return
    picture = asyncio.run(_once(asking, prefixes, interval_s))
    if as_json:
        print_json(picture.as_dict())
    else:
        _print(picture)
    if not any(one.state != "gone" for one in picture.queues):
        raise OwnerUnreachable(
            picture.trouble
            or f"no owner of {', '.join(prefixes) or 'any queue'} was found within "
            f"{asking.timeout_s:g} s: see that both sides use the same --connect, --listen and --namespace"
        )


def _check_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError as missing:
        raise click.UsageError("top needs the extra [rich]: pip install 'istos-worker[rich]'") from missing


async def _once(asking: Asking, prefixes: Sequence[str], interval_s: float) -> Picture:
    """Two looks: what happens in a second is seen between them."""
    from istos_worker.observability.survey import Survey

    client = asking.client(connect_timeout_s=asking.timeout_s)
    async with Survey(client, named=prefixes, patience_s=asking.timeout_s) as survey:
        await survey.open()
        await survey.find(within_s=asking.timeout_s)
        first = await survey.look()
        if not any(one.state == "up" for one in first.queues):
            return first
        await asyncio.sleep(interval_s)
        return await survey.look()


def _print(picture: Picture) -> None:
    from rich.console import Console

    from istos_worker.cli.top_frame import frame

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(frame(picture))


async def _live(asking: Asking, prefixes: Sequence[str], interval_s: float) -> None:
    from rich.live import Live

    from istos_worker.cli.terminal import Keys
    from istos_worker.cli.top_frame import frame
    from istos_worker.observability.survey import Survey

    left = asyncio.Event()
    live = Live(screen=True, auto_refresh=False)

    def show(picture: Picture) -> None:
        height = live.console.size.height
        live.update(frame(picture, height=height, hint="q leaves"), refresh=True)

    def on_key(key: str) -> None:
        if key in "qQ\x03":
            left.set()

    async def watch(survey: Survey) -> None:
        while True:
            show(await survey.look())
            await survey.change(within_s=interval_s)

    client = asking.client(connect_timeout_s=_CONNECT_S)
    async with Survey(client, named=prefixes) as survey:
        with Keys(on_key, leave=left.set, screen=live):
            watching = asyncio.ensure_future(watch(survey))
            leaving = asyncio.ensure_future(left.wait())
            await asyncio.wait((watching, leaving), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, leaving):
                task.cancel()
            await asyncio.wait((watching, leaving))
        if not watching.cancelled():
            await watching
