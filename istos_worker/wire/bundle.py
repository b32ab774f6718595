"""Many job bodies as the payload of one enqueue_many, in the encoding `sized`: a line of JSON with their sizes, then
the bodies as they are. Pure; base64 costs an owner ten times as much."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import orjson

from istos_worker.errors import BadRequestError

BASE64: Final = "base64"
SIZED: Final = "sized"
ENCODINGS: Final = (BASE64, SIZED)
"""How an owner takes bodies that travel together, as its `info` tells; without any they are plain JSON."""


def joined(head: object, bodies: Sequence[bytes]) -> bytes:
    return b"".join((orjson.dumps(head), b"\n", *bodies))


def sizes_of(bodies: Sequence[bytes]) -> list[int]:
    return list(map(len, bodies))


def split_head(payload: bytes) -> tuple[bytes, bytes]:
    """The line of JSON, and the bodies."""
    head, _, rest = payload.partition(b"\n")
    return head, rest


def cut(rest: bytes, sizes: Sequence[object]) -> list[bytes]:
    """The bodies. Raises BadRequestError when the sizes are none, or not theirs."""
    whole = [size for size in sizes if type(size) is int and size >= 0]
    if len(whole) != len(sizes):
        raise BadRequestError("sizes must be whole numbers, not negative")
    ends = list(accumulate(whole, initial=0))
    if ends[-1] != len(rest):
        raise BadRequestError(f"the sizes add up to {ends[-1]} bytes, and {len(rest)} follow")
    return [rest[start:end] for start, end in pairwise(ends)]
