"""Gives the state machine a clock, a medium and group commit. Knows turns; not rules."""

from __future__ import annotations

from typing import Protocol

from istos_worker.errors import IstosError
from istos_worker.queue.records import Instant
from istos_worker.queue.state import QueueState


class Operation(Protocol):
    """One request on its way through a turn. Exactly one of `done` and `failed` is called, once."""

    def apply(self, state: QueueState, now: Instant) -> None:
        """Runs the request on the state. May raise IstosError."""
        ...

    def done(self) -> None:
        """The turn is durable: answer the caller (unless apply parked it)."""
        ...

    def failed(self, error: IstosError) -> None:
        """apply raised, or the medium failed."""
        ...
