"""What an owner's turn is made of. Knows neither clock nor medium."""

from __future__ import annotations

import logging
from typing import Protocol

from istos_worker.errors import IstosError
from istos_worker.queue.records import Instant
from istos_worker.queue.state import QueueState

log = logging.getLogger(__name__)


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


def outlives_failure(operation: Operation) -> bool:
    """An operation with a true attribute of this name is news, not a request (a worker's token came or went): when
    the medium fails it is not failed but applied to the state that is read back."""
    return bool(getattr(operation, "outlives_failure", False))


def is_parked(operation: Operation) -> bool:
    """An operation with a true attribute of this name has nothing to answer yet: `apply` left it waiting."""
    return bool(getattr(operation, "is_parked", False))


def only_brings_jobs(operation: Operation) -> bool:
    """An operation with a true attribute of this name is an enqueue: its jobs may start before they are durable
    (docs/decisions/start-before-sync.md)."""
    return bool(getattr(operation, "only_brings_jobs", False))


def tell_failure(operation: Operation, error: IstosError) -> None:
    try:
        operation.failed(error)
    except Exception:
        log.exception("an error could not be told to its caller")
