"""What a program has declared of the queues it consumes, before anything runs. Holds values; opens nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from istos_worker.serialization import Serializer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a queue is consumed. One that has tasks and no handler is consumed by the defaults."""

    concurrency: int | None = None
    """None: the command's number, or 1 under `App.serving()`."""
    poll_interval_s: float = 1.0
    serializer: Serializer | None = None
    """None: the app's."""
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {self.concurrency!r}")
        if not self.poll_interval_s > 0:
            raise ValueError(f"poll_interval_s must be positive, got {self.poll_interval_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeclaration:
    """A function that runs the jobs of a queue."""

    function: Callable[..., Any]
    options: ConsumerOptions
