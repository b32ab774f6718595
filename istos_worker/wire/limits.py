"""How much of anything one request may carry (CONTRACT.md 4.12). Pure numbers, told to callers by `info`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

MAX_PAYLOAD_BYTES = 8 << 20
MAX_BATCH = 1000
MAX_BATCH_BYTES = 32 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_WF_BYTES = 1 << 20
MAX_NAME = 64
MAX_KEY = 256
MAX_DELAY_S = 10 * 366 * 86400.0
MAX_WAIT_S = 25.0
MAX_ATTEMPTS = 1_000_000
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    payload_bytes: int = MAX_PAYLOAD_BYTES
    """One job's body, or one result."""
    batch: int = MAX_BATCH
    """Jobs in one enqueue_many, outcomes in one settle, jobs of one claim."""
    batch_bytes: int = MAX_BATCH_BYTES
    """The payload of one enqueue_many or settle, as sent."""
    error_bytes: int = MAX_ERROR_BYTES
    """Longer error texts are cut, and say so."""
    wf_bytes: int = MAX_WF_BYTES
    wait_s: float = MAX_WAIT_S
    delay_s: float = MAX_DELAY_S

    def as_dict(self) -> dict[str, int | float]:
        return asdict(self)
