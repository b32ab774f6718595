"""What became of a delivery, and its form in a settle. Pure."""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple, assert_never


class Acked(NamedTuple):
    result: bytes


class Failed(NamedTuple):
    error: str
    retry_after_s: float | None = None
    """None: the owner's backoff."""
    discard: bool = False


class Released(NamedTuple):
    delay_s: float = 0.0


class GaveUp(NamedTuple):
    """The job was cancelled."""


class Forgotten(NamedTuple):
    """The owner has taken the job away: there is nothing to say."""


Outcome = Acked | Failed | Released | GaveUp | Forgotten

NULL: Final = b"null"
_NULL_B64: Final = "bnVsbA=="


def base64_text(raw: bytes) -> str:
    return _NULL_B64 if raw == NULL else binascii.b2a_base64(raw, newline=False).decode()


def as_wire(job_id: str, attempt: int, fence: int | None, outcome: Outcome) -> dict[str, Any]:
    """One member of a settle's `outcomes`."""
    wire: dict[str, Any] = {"verb": "ack", "job_id": job_id, "attempt": attempt, "fence": fence}
    match outcome:
        case Acked(result=result):
            wire["result"] = base64_text(result)
            wire["advance"] = True
        case Failed(error=error, retry_after_s=retry_after_s, discard=discard):
            wire["verb"] = "nack"
            wire["error"] = error
            if retry_after_s is not None:
                wire["retry_after"] = retry_after_s
            if discard:
                wire["discard"] = True
        case Released(delay_s=delay_s):
            wire["verb"] = "release"
            if delay_s:
                wire["delay"] = delay_s
        case GaveUp():
            wire["verb"] = "cancelled"
        case Forgotten():
            raise ValueError("a forgotten delivery has nothing to say")
        case _:
            assert_never(outcome)
    return wire


def size_of(outcome: Outcome) -> int:
    """About how many bytes it takes on the wire."""
    match outcome:
        case Acked(result=result):
            return 200 + len(result) * 4 // 3
        case Failed(error=error):
            return 200 + len(error)
    return 200
