"""Selector parameters and JSON replies, both directions. Pure; docs/protocol.md has the shapes.

Nothing here trusts its input: what cannot be read becomes BadRequestError, never another exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import orjson

from istos_worker.errors import BadRequestError, IstosError, error_from_reply, error_reply, is_error_reply

MAX_PARAMETERS = 32


def encode_params(params: Mapping[str, object]) -> str:
    """`name=value;...`, percent-encoded as peer 0.3 reads it."""
    return ";".join([f"{_quoted_name(name)}={_quoted(value)}" for name, value in params.items()])


_quoted_name = lru_cache(maxsize=256)(quote)


def _quoted(value: object) -> str:
    text = ("1" if value else "0") if isinstance(value, bool) else str(value)
    # Most ids and numbers are plain.
    return text if text.isascii() and text.replace("-", "0").isalnum() else quote(text)


def decode_params(text: str) -> dict[str, str]:
    """The parameters of a selector. The first of a repeated name counts."""
    if not text:
        return {}
    pairs = text.split(";", MAX_PARAMETERS)
    if len(pairs) > MAX_PARAMETERS:
        raise BadRequestError(f"more than {MAX_PARAMETERS} parameters")
    params: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if "%" in pair:
            name, value = unquote(name), unquote(value)
        if name:
            params.setdefault(name, value)
    return params


def int_param(params: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    text = params.get(name)
    if text is None:
        return default
    try:
        value = int(text) if len(text) <= 20 else None
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise BadRequestError(f"{name} must be a whole number from {low} to {high}, got {text[:40]!r}")
    return value


def seconds_param(params: Mapping[str, str], name: str, default: float, *, high: float) -> float:
    text = params.get(name)
    if text is None:
        return default
    try:
        value = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= high:  # NaN fails too
        raise BadRequestError(f"{name} must be seconds from 0 to {high:g}, got {text[:40]!r}")
    return value


def flag_param(params: Mapping[str, str], name: str) -> bool:
    return params.get(name, "0").lower() in ("1", "true", "yes")


def encode_tasks(names: Iterable[str]) -> str:
    return ",".join(names)


@lru_cache(maxsize=32)  # a worker says the same with each claim
def decode_tasks(text: str | None) -> frozenset[str] | None:
    """The names after `tasks=`; None when the parameter is absent: anything will do."""
    return None if text is None else frozenset(name for name in text.split(",") if name)


def encode_reply(reply: object) -> bytes:
    return orjson.dumps(reply)


def encode_error(error: IstosError) -> bytes:
    """The error's bytes; details that JSON cannot carry are sent as text."""
    return orjson.dumps(error_reply(error), default=repr)


def decode_reply(raw: bytes) -> dict[str, Any]:
    """The reply as a dict. Raises the IstosError that an error reply stands for."""
    try:
        reply = orjson.loads(raw)
    except orjson.JSONDecodeError as broken:
        raise IstosError(f"the owner's reply is not JSON: {raw[:80]!r}") from broken
    if not isinstance(reply, dict):
        raise IstosError(f"the owner's reply is not a JSON object: {raw[:80]!r}")
    if is_error_reply(reply):
        raise error_from_reply(reply)
    return reply


def decode_json(payload: bytes, what: str) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as broken:
        raise BadRequestError(f"{what} is not JSON: {broken}") from broken
