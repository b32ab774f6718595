"""One delivery of a job, as this worker holds it: what the reply said, and what is known since."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import Any, NamedTuple

from istos_worker.context import JobContext, LiveDelivery
from istos_worker.worker.handlers import Handler


class Stop(Enum):
    """Why the worker ended a handler."""

    TIME_LIMIT = "time limit"
    CANCEL = "cancelled"
    LOST = "lost"
    HAND_BACK = "handed back"


class Followup(NamedTuple):
    """A job that a workflow continues with."""

    prefix: str
    params: dict[str, object]
    body: bytes


class Delivery:
    """Mutable, owned by the slots; compared by identity, since a job may be delivered here twice."""

    __slots__ = (
        "_context",
        "attempt",
        "claimed_at",
        "fence",
        "finished",
        "followups",
        "handler",
        "job_id",
        "live",
        "progress",
        "queue",
        "started_at",
        "stop",
        "task",
        "timer",
        "wire",
    )

    def __init__(self, queue: str, wire: dict[str, Any], claimed_at: float) -> None:
        """Raises KeyError or TypeError for what is no job object."""
        self.queue = queue
        self.wire = wire
        self.job_id: str = wire["job_id"]
        self.attempt: int = wire.get("attempt", 1)
        self.fence: int | None = wire.get("fence")
        self.claimed_at = claimed_at
        self.started_at = 0.0
        self.stop: Stop | None = None
        self.progress: tuple[float | None, str | None] | None = None
        """What the handler last said with `ctx.progress(...)`."""
        self.finished = False
        self.followups: list[Followup] | None = None
        """Against a peer 0.3 owner: the jobs to enqueue before the ack; None: not known yet."""
        self.handler: Handler | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.live: LiveDelivery | None = None
        self._context: JobContext | None = None

    @property
    def crashes(self) -> int:
        """Deliveries before this one that ended with their worker's death."""
        crashes: int = self.wire.get("crashes", 0)
        return crashes

    @property
    def context(self) -> JobContext:
        """Made when somebody asks: most handlers do not."""
        if self._context is None:
            wire = self.wire
            self._context = JobContext(
                job_id=self.job_id,
                queue=self.queue,
                attempt=self.attempt,
                max_attempts=wire.get("max_attempts", 0),
                last_error=wire.get("last_error"),
                correlation_id=wire.get("correlation_id"),
                traceparent=wire.get("traceparent"),
                fence=self.fence,
                crashes=self.crashes,
                live=self.alive(),
            )
        return self._context

    def alive(self) -> LiveDelivery:
        if self.live is None:
            self.live = LiveDelivery(on_progress=self._progressed)
        return self.live

    def _progressed(self, fraction: float | None, note: str | None) -> None:
        self.progress = (fraction, note)  # one assignment: handlers in threads call this too

    def limit(self, seconds: float) -> None:
        """Brings the handler's deadline to `seconds` from now, unless it is nearer already."""
        live = self.alive()
        at = time.monotonic() + seconds
        live.deadline = at if live.deadline is None else min(live.deadline, at)

    @property
    def label(self) -> str:
        """For people: queue, job, what runs it, and how far it says it is."""
        said = [self.handler.label if self.handler is not None else "?"]
        if self.progress is not None:
            fraction, note = self.progress
            said += [] if fraction is None else [f"{fraction:.0%}"]
            said += [] if note is None else [note]
        return f"{self.queue} {self.job_id} ({', '.join(said)})"
