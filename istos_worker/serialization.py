"""Job bodies and results to bytes and back (docs/serialization.md has the rules). Pure.

orjson does the work; only what it refuses is looked at closely, so the common case costs one call.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from decimal import Decimal
from math import isfinite
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS
_MAX_DEPTH = 250  # orjson's own limit is 254
_MAY_BE_BIG = re.compile(rb"[0-9]{19}")


@runtime_checkable
class Serializer(Protocol):
    """The peer's method names. Both may raise anything: the job then fails with that message."""

    def serialize(self, message: Any, /) -> bytes: ...

    def deserialize(self, data: bytes, /) -> Any: ...


class JsonSerializer:
    """JSON by stated rules; refuses what would not survive the trip, with the path to it."""

    def serialize(self, message: Any, /) -> bytes:
        """Raises TypeError or ValueError naming the path, such as `$.items[3].price is NaN`."""
        if message is None:
            return b"null"
        try:
            raw = orjson.dumps(message, _convert, _OPTIONS)
        except TypeError:  # an integer beyond 64 bits, or something JSON cannot carry
            return _exact_dumps(_plain(message, "$", 0))
        # orjson writes NaN and infinities as null, which would change the data without a word.
        if b"null" in raw and not _is_certainly_finite(message):
            _plain(message, "$", 0)
        return raw

    def deserialize(self, data: bytes, /) -> Any:
        """Raises ValueError for what is not JSON. A peer's NaN, and integers of any size, are kept."""
        if _MAY_BE_BIG.search(data):  # orjson would read an integer beyond 64 bits as a float
            return _exact_loads(data)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return _exact_loads(data)


class RawSerializer:
    """Bytes as they are; text as UTF-8. Always gives bytes back."""

    def serialize(self, message: Any, /) -> bytes:
        match message:
            case bytes():
                return message
            case bytearray() | memoryview():
                return bytes(message)
            case str():
                return message.encode()
        raise TypeError(f"RawSerializer takes bytes or str, got {type(message).__name__}")

    def deserialize(self, data: bytes, /) -> bytes:
        return bytes(data)


def _exact_dumps(plain: Any) -> bytes:
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _exact_loads(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except RecursionError as failed:
        raise ValueError("not JSON this worker can read: nested too deep") from failed
    except UnicodeDecodeError as broken:
        raise ValueError(f"not JSON: {broken}") from broken
    except ValueError as broken:
        raise ValueError(f"not JSON: {broken}") from broken


def _convert(value: Any) -> Any:
    """What orjson does not know, by the rules of docs/serialization.md."""
    match value:
        case Decimal() | PurePath():
            return str(value)
        case set() | frozenset():
            return _listed(value)
        case tuple():  # a named tuple
            return list(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:  # a pydantic model, without importing pydantic
        return dump(value, mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def _listed(value: Iterable[Any]) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def _is_certainly_finite(value: Any) -> bool:
    """True when no number in `value` is NaN or infinite; False when that, or when a type needs a closer look."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return isfinite(value)
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_certainly_finite, value.values()))
    if kind is list or kind is tuple:
        return all(map(_is_certainly_finite, value))
    return False


def _plain(value: Any, path: str, depth: int) -> Any:
    """`value` made of JSON's own types, with integers of any size. Raises for what cannot be, naming `path`."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{_shortened(path)} is nested too deep, or contains itself")
    match value:
        case None | bool() | str():
            return _leaf(value, path)
        case int() if type(value) is int:
            return value
        case float() if not isfinite(value):
            raise ValueError(f"{path} is {_not_finite_name(value)}, which JSON cannot carry")
        case dict():
            return {
                _key(key, path): _plain(each, _below(path, key), depth + 1) for key, each in value.items()
            }
        case list() | tuple():
            return [_plain(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
        case set() | frozenset():
            return [_plain(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(_listed(value))]
        case bytes() | bytearray() | memoryview():
            raise TypeError(
                f"{path} is {type(value).__name__}, which JSON cannot carry: encode it (base64), or use "
                "RawSerializer for a body that is bytes"
            )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        public = {name: each for name, each in fields.items() if not name.startswith("_")}
        return _plain(public, path, depth + 1)
    if getattr(type(value), "model_dump", None) is not None:
        return _plain(_convert(value), path, depth + 1)
    return _leaf(value, path)


def _leaf(value: Any, path: str) -> Any:
    try:
        return orjson.loads(orjson.dumps(value, _convert))
    except TypeError as refused:
        if isinstance(value, str):
            raise ValueError(f"{path} is text that is not valid Unicode (a lone surrogate)") from refused
        raise TypeError(f"{path} is {type(value).__name__}, which JSON cannot carry") from refused


def _key(key: Any, path: str) -> str:
    if isinstance(key, str) and type(key) is not str:
        key = str.__str__(key)
    if isinstance(key, float) and not isfinite(key):
        raise ValueError(f"{path} has the key {_not_finite_name(key)}, which JSON cannot carry")
    if type(key) is int:
        return str(key)
    try:
        (text,) = orjson.loads(orjson.dumps({key: 0}, option=_OPTIONS))
    except TypeError as refused:
        raise TypeError(
            f"{path} has a key of type {type(key).__name__}, which JSON cannot carry"
        ) from refused
    return str(text)


def _not_finite_name(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def _shortened(path: str) -> str:
    return path if len(path) <= 80 else f"{path[:40]}...{path[-30:]}"
