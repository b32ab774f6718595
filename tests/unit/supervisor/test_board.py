"""Figures in shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.board import CELL_BYTES, Board, Figures


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    one = Board.create()
    yield one
    one.close()


def test_a_cleared_cell_reads_as_nothing(board: Board) -> None:
    board.writer(5).figures(done=1, busy=1, slots=1, serving=True)

    board.clear(5)

    assert board.read(5) == Figures()


@given(
    st.integers(0, 2**63), st.lists(st.text(st.characters(exclude_characters="\n"), min_size=1), max_size=20)
)
def test_what_is_written_is_read(board: Board, done: int, held: list[str]) -> None:
    writer = board.writer(7)

    writer.beat(12.5)
    writer.label("worker é")
    writer.figures(done=done, busy=3, slots=8, serving=True)
    writer.held(held)

    figures = board.read(7)
    assert (figures.beat_until, figures.done, figures.label) == (12.5, done, "worker é")
    if len("\n".join(held).encode(errors="replace")) < CELL_BYTES // 2:
        assert "\n".join(figures.held) == "\n".join(held).encode(errors="replace").decode()


def test_more_than_fits_says_how_many_were_left_out(board: Board) -> None:
    writer = board.writer(9)
    neighbour = board.writer(10)
    neighbour.label("untouched")

    writer.held([f"job-{number:040d}" for number in range(500)])

    held = board.read(9).held
    assert held[-1] == f"... {500 - (len(held) - 1)} more"
    assert board.read(10).label == "untouched"


def test_a_label_is_cut_not_spilled(board: Board) -> None:
    writer = board.writer(11)
    writer.held(["kept"])

    writer.label("x" * 10_000)

    assert board.read(11).label == "x" * 256
    assert board.read(11).held == ("kept",)
