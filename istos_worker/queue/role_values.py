"""Single values out of parameters and JSON, checked at the door. What cannot be read is BadRequestError."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.queue.limits import JOB_ID as JOB_ID
from istos_worker.queue.limits import MAX_KEY
from istos_worker.wire.codec import decode_json, seconds_param
from istos_worker.wire.limits import Limits

MAX_INT = 2**63 - 1


def to_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def text_param(params: Mapping[str, str], name: str, longest: int) -> str | None:
    text = params.get(name)
    if text is not None and not 0 < len(text) <= longest:
        raise BadRequestError(f"{name} must have 1 to {longest} characters, got {len(text)}")
    return text


def required(params: Mapping[str, str], name: str) -> str:
    text = text_param(params, name, MAX_KEY)
    if text is None:
        raise BadRequestError(f"{name} is missing")
    return text


def optional_seconds(params: Mapping[str, str], name: str, high: float) -> float | None:
    return seconds_param(params, name, 0.0, high=high) if name in params else None


def number(named: dict[str, Any], name: str, high: float) -> float | None:
    value = named.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
        raise BadRequestError(f"{name} must be seconds from 0 to {high:g}, got {value!r:.40}")
    return float(value)


def check_size(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise PayloadTooLargeError(f"{what} has {size} bytes, the limit is {limit}")


def checked_wf(wf: str, limits: Limits) -> str:
    check_size(len(wf), limits.wf_bytes, "wf")
    if not isinstance(decode_json(from_base64(wf, "wf"), "wf"), dict):
        raise BadRequestError("wf must be base64 of a JSON object")
    return wf


def from_base64(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise BadRequestError(f"{what} must be base64 text")
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except ValueError as broken:  # not ASCII, or not base64
        raise BadRequestError(f"{what} is not base64: {broken}") from broken
