"""Questions and answers as bytes on a local socket (docs/protocol.md, "On one machine"). Pure; trusts nothing.

A frame is its size in 4 bytes, and that many bytes. Numbers are unsigned, most significant byte first.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

GREETING = b"istos-worker local 1\n"
"""What the owner says first. Nothing is sent to anybody who says something else."""

GREETING_S = 1.0
"""How long an owner that has just answered may take to greet."""

MAX_QUESTION_BYTES = 64 << 20
"""The owner hangs up on a longer one."""
MAX_ANSWER_BYTES = 1 << 30
"""As Zenoh's own limit of a message."""

_SIZE = struct.Struct("!I")
SIZE_BYTES = _SIZE.size
_QUESTION = struct.Struct("!IHIi")
"""Number; sizes of key, parameters and attachment, the last -1 where there is none. The rest is the payload."""
_ANSWER = struct.Struct("!I?")
"""Number; whether somebody serves that key. The rest is the reply."""


class FrameError(ValueError):
    """Not what the other side may send: the connection cannot be used any more."""


class Question(NamedTuple):
    number: int
    """Its answer has the same."""
    key: str
    params: str
    payload: bytes
    attachment: bytes | None


class Answer(NamedTuple):
    number: int
    reply: bytes | None
    """None: nobody serves that key here."""


def encode_question(
    number: int, key: str, params: str, payload: bytes | None, attachment: bytes | None
) -> bytes:
    named, told, attached = key.encode(), params.encode(), attachment or b""
    head = _QUESTION.pack(number, len(named), len(told), -1 if attachment is None else len(attached))
    return _framed(head, named, told, attached, payload or b"")


def decode_question(frame: bytes) -> Question:
    """Raises FrameError."""
    try:
        number, key_size, params_size, attachment_size = _QUESTION.unpack_from(frame)
        params_at = _QUESTION.size + key_size
        attachment_at = params_at + params_size
        payload_at = attachment_at + max(attachment_size, 0)
        if payload_at > len(frame):
            raise FrameError(f"a question of {len(frame)} bytes that says it has {payload_at}")
        key = frame[_QUESTION.size : params_at].decode()
        params = frame[params_at:attachment_at].decode()
    except (struct.error, UnicodeDecodeError) as broken:
        raise FrameError(f"a question that cannot be read: {broken}") from broken
    attachment = None if attachment_size < 0 else frame[attachment_at:payload_at]
    return Question(number, key, params, frame[payload_at:], attachment)


def encode_answer(number: int, reply: bytes | None) -> bytes:
    return _framed(_ANSWER.pack(number, reply is not None), reply or b"")


def decode_answer(frame: bytes) -> Answer:
    """Raises FrameError."""
    try:
        number, is_served = _ANSWER.unpack_from(frame)
    except struct.error as broken:
        raise FrameError(f"an answer that cannot be read: {broken}") from broken
    return Answer(number, frame[_ANSWER.size :] if is_served else None)


def _framed(*parts: bytes) -> bytes:
    return b"".join((_SIZE.pack(sum(map(len, parts))), *parts))


class FrameDecoder:
    """Makes frames of what comes in, which comes in pieces."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = _SIZE.size
        """Bytes in all before there is something to cut."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The frames that are complete now, without their sizes. Raises FrameError for one that is too long."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < self._wanted:
            return []
        come = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        frames: list[bytes] = []
        at, end = 0, len(come)
        self._wanted = _SIZE.size
        while end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(come, at)
            if size > self._longest:
                raise FrameError(f"a frame of {size} bytes, the limit is {self._longest}")
            begin = at + _SIZE.size
            if begin + size > end:
                self._wanted = _SIZE.size + size
                break
            at = begin + size
            frames.append(come[begin:at])
        rest = come[at:]
        self._pieces, self._size = ([rest] if rest else []), len(rest)
        return frames
