"""One frame of `istos-queue top`, by rich. Pure: a picture in, something to print out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from istos_worker.observability.picture import Picture, QueueRow, WorkerRow

_QUEUE_COLUMNS = ("queue", "ready", "delayed", "leased", "dead", "done/s", "oldest", "workers", "")
_WORKER_COLUMNS = ("worker", "held", "queues", "")
_NUMBERS = frozenset(("ready", "delayed", "leased", "dead", "done/s", "oldest", "workers", "held"))
_NOTE = 60
"""Characters of it: figures are worth more room."""
_AROUND = 7
"""Lines of a frame that are neither a queue nor a worker."""


def frame(picture: Picture, *, height: int | None = None, hint: str = "") -> RenderableType:
    """`height`: no more lines than this; None for all. `hint` stands at the right of the first line."""
    room = None if height is None else max(height - _AROUND, 2)
    queues, workers = _shares(len(picture.queues), len(picture.workers), room)
    parts: list[RenderableType] = [_head(picture, hint)]
    if picture.trouble:
        parts.append(Text(printable(picture.trouble), style="red"))
    elif not picture.queues:
        parts.append(Text("no queue's owner has been found yet", style="yellow"))
    if picture.queues:
        rows = (_queue_cells(one) for one in picture.queues[:queues])
        parts += _table(_QUEUE_COLUMNS, rows, len(picture.queues) - queues)
    if picture.workers:
        rows = (_worker_cells(one) for one in picture.workers[:workers])
        parts += _table(_WORKER_COLUMNS, rows, len(picture.workers) - workers)
    return Group(*parts)


def _shares(queues: int, workers: int, room: int | None) -> tuple[int, int]:
    """How many rows of each are shown."""
    if room is None or queues + workers <= room:
        return queues, workers
    for_queues = min(queues, max(room // 2, room - workers))
    return for_queues, min(workers, room - for_queues)


def _head(picture: Picture, hint: str) -> RenderableType:
    line = Table.grid(expand=bool(hint))
    line.add_column(no_wrap=True, ratio=1 if hint else None)
    line.add_column(justify="right", no_wrap=True)
    up = sum(one.state == "up" for one in picture.queues)
    figures = (
        f"{time.strftime('%H:%M:%S')}  queues {up}/{len(picture.queues)}  workers {len(picture.workers)}"
    )
    line.add_row(Text.assemble(("istos-queue top  ", "bold"), figures), Text(hint, style="dim"))
    return line


def _table(columns: Sequence[str], rows: Iterable[Sequence[Text]], left_out: int) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = column in _NUMBERS
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    more = [Text(f"and {left_out} more", style="dim")] if left_out > 0 else []
    return [Text(), table, *more]


def _queue_cells(row: QueueRow) -> list[Text]:
    return [
        Text(printable(row.queue), style="" if row.state == "up" else "dim"),
        _number(row.ready),
        _number(row.delayed),
        _number(row.leased),
        _number(row.dead, style="red" if row.dead else ""),
        Text("-" if row.done_per_s is None else f"{row.done_per_s:,.1f}"),
        Text(span(row.oldest_ready_s)),
        _number(row.workers),
        _state(row),
    ]


def _state(row: QueueRow) -> Text:
    match row.state:
        case "gone":
            since = "" if row.gone_s is None else f" {span(row.gone_s)}"
            return Text(f"owner gone{since}", style="bold red")
        case "silent":
            return Text("owner does not answer", style="bold red")
        case "refused":
            return Text(printable(row.note)[:_NOTE], style="yellow")
        case "up":
            return Text("paused", style="yellow") if row.paused else Text()


def _worker_cells(row: WorkerRow) -> list[Text]:
    return [
        Text(printable(row.worker)),
        _number(row.held),
        Text(printable(" ".join(row.queues)), style="dim"),
        Text() if row.is_up else Text("missing", style="red"),
    ]


def _number(number: int | None, style: str = "") -> Text:
    return Text("-" if number is None else f"{number:,}", style=style)


def span(seconds: float | None) -> str:
    """As short as it can be read."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, below in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < below:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def printable(text: str) -> str:
    """Names and errors come from the mesh: none of them moves the cursor."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
