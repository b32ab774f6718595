"""Values to job bodies, and workflows to the `wf` parameter (docs/protocol.md). Pure."""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import orjson

from istos_worker.serialization import JsonSerializer, RawSerializer, Serializer

OnFailure = Literal["wait", "fail", "collect"]


class Serializes(Protocol):
    """Peer 0.3's interface; `serialize` may give text, as some of its serializers do."""

    def serialize(self, message: Any, /) -> bytes | str: ...

    def deserialize(self, data: bytes, /) -> Any: ...


def to_body(serializer: Serializes, data: Any) -> bytes:
    body = serializer.serialize(data)
    return body.encode() if isinstance(body, str) else body


def to_bodies(serializer: Serializes, items: Iterable[Any]) -> list[bytes]:
    return [body.encode() if isinstance(body, str) else body for body in map(serializer.serialize, items)]


class _AsBytes:
    """A serializer that gives text, as one that gives bytes."""

    def __init__(self, serializer: Serializes) -> None:
        self._serializer = serializer
        self.deserialize = serializer.deserialize

    def serialize(self, message: Any, /) -> bytes:
        return to_body(self._serializer, message)


def as_serializer(serializer: Serializes | None) -> Serializer | None:
    if serializer is None or isinstance(serializer, (JsonSerializer, RawSerializer)):
        return serializer
    return _AsBytes(serializer)


def from_base64(serializer: Serializes, text: str | None) -> Any:
    return None if text is None else serializer.deserialize(binascii.a2b_base64(text))


def encode_wf(workflow: dict[str, Any]) -> str:
    return binascii.b2a_base64(orjson.dumps(workflow), newline=False).decode()


def chain_wf(prefixes: Sequence[str]) -> str | None:
    """What follows the first step; None when nothing does."""
    rest = [{"prefix": prefix} for prefix in prefixes[1:]]
    return encode_wf({"chain": rest}) if rest else None


def chord_wfs(
    chord_id: str, size: int, callback: tuple[str, bytes], on_failure: OnFailure | None
) -> list[str | None]:
    """One for each member."""
    prefix, body = callback
    told = {"prefix": prefix, "data": binascii.b2a_base64(body, newline=False).decode()}
    shared: dict[str, Any] = {"id": chord_id, "size": size, "callback": told}
    if on_failure is not None:
        shared["on_failure"] = on_failure
    return [encode_wf({"chord": {**shared, "index": index}}) for index in range(size)]
