"""The attachment of a query: token, correlation id, trace context (CONTRACT.md section 3). Pure.

A bare string is a token, as in peer 0.3; JSON is used only where an id or a trace travels with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import orjson

MAX_CORRELATION_ID = 200
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_UNSAFE = re.compile(r'[\x00-\x1f"\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    token: str | None = field(default=None, repr=False)
    correlation_id: str | None = None
    traceparent: str | None = None

    def encode(self) -> bytes | None:
        """The attachment's bytes; None when there is nothing to carry."""
        if self.correlation_id is None and self.traceparent is None:
            return None if self.token is None else self.token.encode()
        named = {"tok": self.token, "cid": self.correlation_id, "tp": self.traceparent}
        return orjson.dumps({name: value for name, value in named.items() if value is not None})


def decode_envelope(raw: bytes | None) -> Envelope:
    """What an attachment says. Never raises: bytes that say nothing carry no token."""
    if not raw:
        return Envelope()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return Envelope()
    if text.lstrip()[:1] == "{":
        try:
            named = orjson.loads(text)
        except orjson.JSONDecodeError:
            named = None
        if isinstance(named, dict) and not named.keys().isdisjoint(("tok", "cid", "tp")):
            return Envelope(
                token=_text(named.get("tok")),
                correlation_id=safe_correlation_id(named.get("cid")),
                traceparent=safe_traceparent(named.get("tp")),
            )
    return Envelope(token=text)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def safe_correlation_id(value: object) -> str | None:
    """The id, unless it is missing, too long, or could break a log line."""
    if not isinstance(value, str) or not value or len(value) > MAX_CORRELATION_ID or _UNSAFE.search(value):
        return None
    return value


def safe_traceparent(value: object) -> str | None:
    """The value, unless it is not a W3C traceparent (all-zero ids are not)."""
    if not isinstance(value, str):
        return None
    candidate = value.strip().lower()
    return candidate if _TRACEPARENT.fullmatch(candidate) else None
