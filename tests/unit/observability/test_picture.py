from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("rich")

from rich.console import Console

from istos_worker.cli.top_frame import frame, span
from istos_worker.observability.picture import Pace, Picture, QueueRow, WorkerRow, joined


def printed(picture: Picture, **options: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(frame(picture, **options))
    return out.getvalue()


def test_a_pace_is_told_between_two_looks_and_not_across_a_restart() -> None:
    pace = Pace()

    told = [pace.per_s(*look) for look in ((10, 1.0), (30, 3.0), (5, 4.0), (6, 5.0), (7, 5.0))]

    assert told == [None, 10.0, None, 1.0, None]


def test_a_worker_of_several_queues_is_one_row_and_the_busiest_is_first() -> None:
    rows = joined(
        {
            "a": [{"worker": "w1", "held": 1, "up": True}, {"worker": "w2", "held": 0, "up": True}],
            "b": [{"worker": "w2", "held": 3, "up": False}],
        }
    )

    assert rows == [
        WorkerRow(worker="w2", held=3, is_up=False, queues=("a", "b")),
        WorkerRow(worker="w1", held=1, is_up=True, queues=("a",)),
    ]


def test_a_frame_is_never_higher_than_its_terminal() -> None:
    queues = [QueueRow(queue=f"jobs/{number}", state="up", ready=number) for number in range(50)]
    workers = [WorkerRow(worker=f"w{number}", held=1, is_up=True, queues=("jobs/1",)) for number in range(50)]

    for height in (24, 10):
        assert len(printed(Picture(queues=queues, workers=workers), height=height).splitlines()) <= height
    assert "more" in printed(Picture(queues=queues, workers=workers), height=24)
    assert "more" not in printed(Picture(queues=queues, workers=workers))


def test_what_comes_from_the_mesh_moves_no_cursor_and_is_no_markup() -> None:
    hostile = QueueRow(queue="jobs/\x1b[2J\x9b[red]x", state="refused", note="a\r\nb\x07")

    shown = printed(Picture(queues=[hostile]))

    assert not {"\x1b", "\x9b", "\r", "\x07"} & set(shown)
    assert "[red]x" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (61, "61 s"),
        (121, "2 min"),
        (7300, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_a_span_is_as_short_as_it_can_be_read(seconds: float | None, text: str) -> None:
    assert span(seconds) == text
