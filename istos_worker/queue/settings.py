"""How one queue behaves. Checked once, where it is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How one queue behaves. Durations in seconds."""

    prefix: str = ""
    """The queue's name on the mesh: a continuation for this very prefix is enqueued here."""
    lease_s: float = 30.0
    max_attempts: int = 5
    retry_backoff_s: float = 0.0
    retry_backoff_max_s: float = 600.0
    retry_jitter: float = 0.1
    crash_budget: int = 3
    """How many deaths of a worker one job survives less one: the job is dead at this many."""
    keep_results: bool = False
    result_ttl_s: float = 3600.0
    max_payload_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise ValueError(f"lease_s must be positive, got {self.lease_s!r}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts!r}")
        for name in (
            "retry_backoff_s",
            "retry_backoff_max_s",
            "retry_jitter",
            "result_ttl_s",
            "crash_budget",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")

    @property
    def grace_s(self) -> float:
        """How long a holder whose token dropped may take to come back (CONTRACT.md section 4, rule 3)."""
        return min(self.lease_s, 5.0)
