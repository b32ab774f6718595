"""The option values that only `istos-worker` takes: `--procs`, `--concurrency`, `--metrics`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from istos_worker.cli.worker_here import usable_cpus
from istos_worker.errors import BadRequestError
from istos_worker.fleet.plan import DEFAULT_CONCURRENCY, Concurrency
from istos_worker.wire.keys import queue_prefix

MAX_PROCS = 500
MAX_CONCURRENCY = 10_000


class Procs(click.ParamType[int]):
    name = "procs"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return usable_cpus()
        number = whole_number(value)
        if number is None or not 1 <= number <= MAX_PROCS:
            self.fail(f"{value!r} is not auto or a whole number from 1 to {MAX_PROCS}", param, ctx)
        return number


class ConcurrencyValue(click.ParamType[tuple[str | None, int]]):
    """`N`, or `PREFIX=N` for one queue."""

    name = "concurrency"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, int]:
        if isinstance(value, tuple):
            return value
        prefix, equals, text = str(value).rpartition("=")
        number = whole_number(text)
        if number is None or not 1 <= number <= MAX_CONCURRENCY:
            self.fail(f"{value!r} is not N or PREFIX=N with N from 1 to {MAX_CONCURRENCY}", param, ctx)
        if not equals:
            return None, number
        try:
            return queue_prefix(prefix), number
        except BadRequestError as wrong:
            self.fail(wrong.message, param, ctx)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return rv.replace(",", " ").split()


class HostPort(click.ParamType[tuple[str, int]]):
    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, text = str(value).rpartition(":")
        port = whole_number(text)
        if port is None or not 0 <= port <= 65535:
            self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9100", param, ctx)
        return host.strip("[]") or "127.0.0.1", port


def whole_number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def concurrency_of(values: Sequence[tuple[str | None, int]]) -> Concurrency:
    """The last one given wins, for N as for each PREFIX."""
    numbers = dict(values)
    default = numbers.pop(None, DEFAULT_CONCURRENCY)
    return Concurrency(default=default, by_queue={str(prefix): number for prefix, number in numbers.items()})
