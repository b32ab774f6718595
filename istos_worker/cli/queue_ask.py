"""What the one-shot commands share: a client for one question, and the answer as a table or as JSON."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import orjson
from click.core import ParameterSource

from istos_worker.cli.options import Duration, Listed, network_options
from istos_worker.errors import BadRequestError
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.settings import ZenohSettings

if TYPE_CHECKING:
    from istos_worker.client import Client

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Asking:
    """Runs one coroutine with an open client."""

    def __init__(self, network: ZenohSettings, token: str | None, timeout_s: float) -> None:
        self._network = network.over(connect_timeout_s=timeout_s)
        self._token = token
        self.timeout_s = timeout_s

    def __call__(self, ask: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        return asyncio.run(self._ask(ask))

    def client(self, *, connect_timeout_s: float) -> Client:
        """One that is not open yet, for a command that goes on and on."""
        from istos_worker.client import Client

        return Client(self._network.over(connect_timeout_s=connect_timeout_s), token=self._token)

    async def _ask(self, ask: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        from istos_worker.client import Client

        async with Client(self._network, token=self._token) as client:
            return await ask(client)


def asks_owner(command: F, *, listens: bool = True) -> F:
    """Adds the network options and `--timeout`; the function gets `asking: Asking` instead of them. `listens` False:
    the command's own `--listen` is about something else."""

    @functools.partial(network_options, listens=listens)
    @click.option(
        "--timeout",
        "timeout_s",
        type=Duration(low_s=0.01),
        default="5s",
        show_default=True,
        metavar="DUR",
        help="How long to look for an owner.",
    )
    @functools.wraps(command)
    def with_asking(
        *args: Any, network: ZenohSettings, token: str | None, timeout_s: float, **kwargs: Any
    ) -> Any:
        ctx = click.get_current_context()
        if ctx.get_parameter_source("listen") is not ParameterSource.COMMANDLINE:
            network = replace(
                network, listen=()
            )  # that is where the owner listens, which shares the settings
        return command(*args, asking=Asking(network, token, timeout_s), **kwargs)

    return cast(F, with_asking)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class QueueName(Listed):
    """A queue's name, in its canonical form."""

    name = "prefix"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return queue_prefix(str(value))
        except BadRequestError as wrong:
            self.fail(str(wrong), param, ctx)


prefix_argument = click.argument("prefix", type=QueueName())


def print_json(value: object) -> None:
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Aligned columns under their names; numbers to the right."""
    texts = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(text[index]) for text in texts), 0) for index, column in enumerate(columns)
    ]
    click.echo("  ".join(column.ljust(width) for column, width in zip(columns, widths, strict=True)).rstrip())
    for row, text in zip(rows, texts, strict=True):
        cells = (
            cell.rjust(width) if isinstance(row.get(column), (int, float)) else cell.ljust(width)
            for cell, width, column in zip(text, widths, columns, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case _:
            return " ".join(str(value).split())
