"""What a supervisor may tell a process it started. A closed union and its form on the link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

Body: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Start nothing more, finish what runs, leave. `deadline_s` None: however long that takes."""

    deadline_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphaned:
    """The supervisor is gone: as `Drain`, and nobody will come with a KILL."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack:
    """Give back what runs and leave now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """Start nothing more, keep running."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Undo `Quiet`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something for the application; delivered to another process if not acknowledged in life."""

    id: int
    body: Body


Order: TypeAlias = Drain | Orphaned | HandBack | Quiet | Resume | Message


def to_wire(order: Order) -> dict[str, Any]:
    match order:
        case Drain(deadline_s=deadline_s, reason=reason):
            return {"t": "drain", "deadline_s": deadline_s, "reason": reason}
        case Orphaned(deadline_s=orphan_s):
            return {"t": "orphaned", "deadline_s": orphan_s}
        case HandBack(reason=reason):
            return {"t": "hand_back", "reason": reason}
        case Quiet():
            return {"t": "quiet"}
        case Resume():
            return {"t": "resume"}
        case Message(id=id_, body=body):
            return {"t": "message", "id": id_, "body": dict(body)}
        case _:
            assert_never(order)


def from_wire(message: Mapping[str, Any]) -> Order | None:
    """None for something that is not an order (a newer supervisor's, or the link's own business)."""
    match message:
        case {"t": "drain", "deadline_s": deadline_s, "reason": reason}:
            return Drain(deadline_s=deadline_s, reason=reason)
        case {"t": "orphaned", "deadline_s": deadline_s}:
            return Orphaned(deadline_s=deadline_s)
        case {"t": "hand_back", "reason": reason}:
            return HandBack(reason=reason)
        case {"t": "quiet"}:
            return Quiet()
        case {"t": "resume"}:
            return Resume()
        case {"t": "message", "id": id_, "body": body}:
            return Message(id=id_, body=body)
        case _:
            return None
