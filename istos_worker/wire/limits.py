"""How much one request may carry, as `info` tells it (CONTRACT.md 4.12). What one job may be is the queue's own
concern (queue/limits.py)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MAX_BATCH = 1000
MAX_BATCH_BYTES = 32 << 20
MAX_WAIT_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    payload_bytes: int = 8 << 20
    """One job's body, or one result."""
    batch: int = MAX_BATCH
    """Jobs in one enqueue_many, outcomes in one settle, jobs of one claim."""
    batch_bytes: int = MAX_BATCH_BYTES
    """The payload of one enqueue_many, settle or extend, as sent."""
    wf_bytes: int = 1 << 20
    wait_s: float = MAX_WAIT_S
    """The longest that a claim or a result is held."""

    def as_dict(self) -> dict[str, int | float]:
        return asdict(self)
