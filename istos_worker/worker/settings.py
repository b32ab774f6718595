"""What one worker of one queue is told at its start. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from istos_worker.wire.keys import queue_prefix
from istos_worker.worker.suspects import Suspects

_WORKER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_worker_id() -> str:
    """Unique per process boot; safe in a key."""
    return f"{os.getpid()}-{os.urandom(6).hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    prefix: str
    concurrency: int = 1
    """Slots: how many jobs run at the same time."""
    worker_id: str = field(default_factory=new_worker_id)
    token: str | None = field(default=None, repr=False)
    poll_interval_s: float = 1.0
    """Against a peer 0.3 owner only: how often an idle loop looks for jobs it was not told of."""
    job_timeout_s: float | None = None
    """Time limit of a job whose task has none of its own."""
    wait_s: float = 20.0
    """How long the owner may hold an idle worker's claim."""
    request_timeout_s: float = 5.0
    prefetch_s: float = 0.05
    """Jobs are claimed ahead only as far as the slots will start them within this time."""
    prefetch_max: int = 512
    release_s: float = 1.5
    """How long a drain may go past its deadline to hand back what is held."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", queue_prefix(self.prefix))
        if not _WORKER_ID.fullmatch(self.worker_id):
            raise ValueError(f"worker_id must be 1 to 64 letters, digits and . _ -, got {self.worker_id!r}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {self.concurrency!r}")
        if self.poll_interval_s <= 0:
            raise ValueError(f"poll_interval_s must be positive, got {self.poll_interval_s!r}")
        if self.job_timeout_s is not None and self.job_timeout_s <= 0:
            raise ValueError(f"job_timeout_s must be positive, got {self.job_timeout_s!r}")
        if not 0 < self.wait_s <= 25:
            raise ValueError(f"wait_s must be above 0 and at most 25, got {self.wait_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHooks:
    """What ties a worker to the process around it: how a supervisor follows along (called on the loop, must not
    block), and what the workers of several queues share."""

    on_change: Callable[[], None] | None = None
    """The figures of `Worker.statistics` or `Worker.running()` changed. Called once per loop turn, before the
    jobs just started run."""
    retire: Callable[[str], None] | None = None
    """This process should be replaced: a thread is stuck in a job past its time limit."""
    suspects: Suspects = field(default_factory=Suspects)
    """Shared by all workers of the process."""
