"""A job's body for people to read. Pure."""

from __future__ import annotations

import binascii
from typing import Any

import orjson


def readable(encoded: str) -> Any:
    """Of base64: the body as JSON, or as text, or else as `{"base64": encoded}`."""
    raw = binascii.a2b_base64(encoded)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": encoded}
