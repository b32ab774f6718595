"""A worker's figures, as attributes that cost nothing to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Statistics:
    """Live: read it whenever; it is never replaced."""

    slots: int
    busy: int = 0
    """Jobs running now."""
    prefetched: int = 0
    """Jobs claimed that have not started yet."""
    done: int = 0
    """Attempts finished, however they ended. What `--max-jobs` counts."""
    succeeded: int = 0
    failed: int = 0
    released: int = 0
    """Jobs handed back uncharged."""
    stale: int = 0
    """Outcomes the owner refused, since this worker no longer held the job."""
    connected: bool = False
    """The last exchange with an owner worked. False while claims fail."""
    owner: str | None = None
    """"istos-worker" or "peer 0.3", once known."""
    last_error: str | None = None
    """Why the owner is not reachable, or the last failure of a job."""
