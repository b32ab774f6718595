"""What a handler is told about its delivery. Pure: it reads a small live record that the worker keeps up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class LiveDelivery:
    """The part of a delivery that changes while its handler runs. The worker writes it; handlers read it through
    their JobContext. Plain attribute reads and writes, so handlers in threads may look at any time."""

    __slots__ = ("cancelled", "deadline", "draining", "on_progress")

    def __init__(
        self,
        *,
        deadline: float | None = None,
        on_progress: Callable[[float | None, str | None], None] | None = None,
    ) -> None:
        self.deadline = deadline
        """`time.monotonic()` seconds at which the handler is cancelled; None: no limit."""
        self.draining = False
        self.cancelled = False
        self.on_progress = on_progress


@dataclass(frozen=True, slots=True)
class JobContext:
    """This delivery of a job. A handler that names a parameter `ctx` is given one."""

    job_id: str
    queue: str
    attempt: int
    """1 on the first delivery."""
    max_attempts: int
    last_error: str | None = None
    """Why the attempt before this one failed, if it did."""
    correlation_id: str | None = None
    traceparent: str | None = None
    fence: int | None = None
    """Rises with every delivery of the queue: hand it to systems that must refuse a late writer. None: the owner
    is a peer 0.3 and has none."""
    crashes: int = 0
    """Deliveries before this one that ended with their worker's death; they are not counted as attempts used."""
    live: LiveDelivery = field(default_factory=LiveDelivery, repr=False, compare=False)

    @property
    def is_retry(self) -> bool:
        return self.attempt > 1

    @property
    def is_last_attempt(self) -> bool:
        """True when raising will dead-letter the job instead of redelivering it."""
        return self.attempt - self.crashes >= self.max_attempts

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` seconds at which this handler will be cancelled (time limit or drain); None: no limit.
        It may come nearer while the handler runs."""
        return self.live.deadline

    @property
    def draining(self) -> bool:
        """True once the worker has been told to stop: finish soon, or raise Snooze to hand the job back."""
        return self.live.draining

    @property
    def cancelled(self) -> bool:
        """True once somebody cancelled the job: stop, and raise Cancelled."""
        return self.live.cancelled

    def progress(self, fraction: float | None = None, note: str | None = None) -> None:
        """Says how far the job is: `fraction` from 0 to 1, and a short note. Costs no round trip."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction!r}")
        if self.live.on_progress is not None:
            self.live.on_progress(fraction, note)
