"""Frames of a local socket: whole however they are cut, and nothing but FrameError for what is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istos_worker.wire.local_frames import (
    MAX_QUESTION_BYTES,
    Answer,
    FrameDecoder,
    FrameError,
    Question,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)

NUMBERS = st.integers(0, 2**32 - 1)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
questions = st.builds(
    Question, NUMBERS, KEYS, KEYS, st.binary(max_size=50), st.none() | st.binary(max_size=20)
)
answers = st.builds(Answer, NUMBERS, st.none() | st.binary(max_size=50))


def in_pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(cut % (len(whole) + 1) for cut in cuts)
    return [whole[begin:end] for begin, end in zip([0, *ends], [*ends, len(whole)], strict=True)]


@pytest.mark.parametrize(
    ("messages", "encode", "decode"),
    [(questions, encode_question, decode_question), (answers, encode_answer, decode_answer)],
    ids=["questions", "answers"],
)
@given(data=st.data())
def test_messages_arrive_as_they_were_sent_in_whatever_pieces(
    messages: st.SearchStrategy[Any], encode: Callable[..., bytes], decode: Callable[[bytes], Any], data: Any
) -> None:
    sent = data.draw(st.lists(messages))
    cuts = data.draw(st.lists(st.integers(0, 2000), max_size=12))
    decoder = FrameDecoder(MAX_QUESTION_BYTES)
    whole = b"".join(encode(*message) for message in sent)

    frames = [frame for piece in in_pieces(whole, cuts) for frame in decoder.feed(piece)]

    assert [decode(frame) for frame in frames] == sent


@given(st.binary(max_size=60))
def test_what_is_no_question_or_answer_is_a_frame_error(noise: bytes) -> None:
    for decode in (decode_question, decode_answer):
        with contextlib.suppress(FrameError):
            decode(noise)


@given(questions, st.integers(1, 200))
def test_a_question_that_was_cut_short_is_a_frame_error_or_has_less_payload(
    question: Question, missing: int
) -> None:
    frame = encode_question(*question)[4:]
    try:
        read = decode_question(frame[:-missing])
    except FrameError:
        return
    assert read[:3] == question[:3]
    assert question.payload.startswith(read.payload)


def test_a_frame_beyond_the_limit_is_refused_before_it_has_come() -> None:
    decoder = FrameDecoder(100)
    assert decoder.feed((100).to_bytes(4)) == []

    with pytest.raises(FrameError, match="101 bytes, the limit is 100"):
        FrameDecoder(100).feed((101).to_bytes(4))
