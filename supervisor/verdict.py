"""The reason a fleet ends, first come first kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`text` is printed once, as it is; None if the log has said enough."""

    exit_code: int
    reason: str
    text: str | None = None
