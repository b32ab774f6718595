"""What a job's body says about itself. Never raises: a body is the producer's, not ours."""

from __future__ import annotations

import re
import sys

import orjson

MAX_TASK_NAME = 200
_PARSED_WHOLE = 64 * 1024
_LEADING_TASK = re.compile(rb'\s*\{\s*"task"\s*:\s*"([^"\\]{1,200})"\s*,\s*"args"\s*:')


def task_of(body: bytes) -> str | None:
    """The task's name when the body is a task call: a JSON object with a string `task`, and `args`, `kwargs`.

    A large body is judged by how it begins, so that no enqueue parses megabytes in the owner.
    """
    if b'"task"' not in body:
        return None
    if len(body) > _PARSED_WHOLE:
        leading = _LEADING_TASK.match(body)
        return _name(leading[1].decode("utf-8", "replace")) if leading else None
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(call, dict) or "args" not in call or "kwargs" not in call:
        return None
    return _name(call.get("task"))


def _name(name: object) -> str | None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TASK_NAME:
        return None
    return sys.intern(name)


def as_json(raw: bytes | None) -> bytes:
    """The bytes as they may stand inside a JSON document: themselves, or, if they are no JSON, as a string."""
    if not raw:
        return b"null"
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.dumps(raw.decode("utf-8", "replace"))
    return raw
