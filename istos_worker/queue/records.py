"""The words of a queue: what goes into the state machine and what comes out. Holds values; decides nothing.

Records that cross a module's border are frozen; `Job` alone is mutable, and only the state machine's own modules
change one. Times named `*_at` and `not_before` are wall-clock seconds, as written to the medium; everything that
runs in memory runs on `Instant.mono`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from istos_worker.errors import BadRequestError, StorageUnavailableError
from istos_worker.queue.settings import QueueSettings as QueueSettings
from istos_worker.storage.protocol import WriteBatch

if TYPE_CHECKING:
    from istos_worker.queue.holders import Holder


class Instant(NamedTuple):
    """One moment on both clocks: `wall` is only ever written down, `mono` drives every timer."""

    wall: float
    mono: float


class JobState(StrEnum):
    """A job's state as callers see it. A delayed job is `ready`: it waits for its time, not for a worker."""

    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"
    DONE = "done"
    CANCELLED = "cancelled"


# A job's state inside the machine; the numbers are written to the medium and never change their meaning.
READY: Final = 0
DELAYED: Final = 1
LEASED: Final = 2
DONE: Final = 3
DEAD: Final = 4
CANCELLED: Final = 5

PUBLIC_STATE: Final = (
    JobState.READY,
    JobState.READY,
    JobState.LEASED,
    JobState.DONE,
    JobState.DEAD,
    JobState.CANCELLED,
)
COUNT_NAMES: Final = ("ready", "delayed", "leased", "done", "dead", "cancelled")


@dataclass(slots=True, kw_only=True)
class NewJob:
    """A job as its producer describes it. `max_attempts` None: the queue's own."""

    body: bytes
    job_id: str | None = None
    priority: int = 0
    delay_s: float = 0.0
    max_attempts: int | None = None
    wf: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    unique_key: str | None = None
    expires_s: float | None = None
    schedule: str | None = None
    tick: str | None = None


class Enqueued(NamedTuple):
    job_id: str
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A job the owner holds. `attempts` counts deliveries, the current one included."""

    seq: int
    id: str
    body: bytes
    max_attempts: int
    enqueued_at: float
    priority: int = 0
    task: str | None = None
    """The task's name when the body is a task call, else None."""
    state: int = READY
    attempts: int = 0
    crashes: int = 0
    """Deliveries that ended with the worker's death; they do not count against max_attempts."""
    fence: int = 0
    holder: Holder | None = None
    claim_seq: int = 0
    lease_until: float = 0.0
    not_before: float = 0.0
    cancel_asked: bool = False
    stored: bool = False
    """False until the body has been handed to the medium."""
    last_error: str | None = None
    history: list[str] | None = None
    wf: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    unique_key: str | None = None
    expires_at: float = 0.0
    """Wall time by which the job must have been started once; 0: never."""
    bound_for: str | None = None
    """The queue that refused this continuation; requeued, it goes there."""
    completed_at: float = 0.0
    result: bytes | None = None

    @property
    def public_state(self) -> JobState:
        return PUBLIC_STATE[self.state]


class Delivery(NamedTuple):
    """One job handed to one holder. Attempt and fence are those of this delivery, whatever happens to the job
    before the answer is sent."""

    job: Job
    attempt: int
    fence: int

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def body(self) -> bytes:
        return self.job.body

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def crashes(self) -> int:
        return self.job.crashes

    @property
    def last_error(self) -> str | None:
        return self.job.last_error

    @property
    def wf(self) -> str | None:
        return self.job.wf

    @property
    def correlation_id(self) -> str | None:
        return self.job.correlation_id

    @property
    def traceparent(self) -> str | None:
        return self.job.traceparent


class Waiter(Protocol):
    """Someone whose answer comes later. The state machine only keeps it and hands it back."""

    def deliver(self, answer: Any, /) -> None:
        """The answer it waited for, durable."""
        ...

    def failed(self, error: StorageUnavailableError, /) -> None:
        """The medium failed, or the owner stops: there will be no answer."""
        ...


@dataclass(slots=True, kw_only=True)
class ClaimRequest:
    """`worker` and `seq` None: a peer's claim. `waiter` None: answer at once, with whatever there is."""

    n: int = 1
    worker: str | None = None
    seq: int | None = None
    tasks: frozenset[str] | None = None
    """Task names to take; `*` among them for bodies that are no task call. None: anything."""
    wait_s: float = 0.0
    waiter: Waiter | None = None
    lease_s: float | None = None
    """None: the queue's own."""


class Parked:
    """The answer will be delivered to the waiter."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "PARKED"


PARKED: Final = Parked()


class JobRef(NamedTuple):
    """Which delivery of which job. A fence, where given, decides; an attempt alone is compared; neither: any."""

    job_id: str
    attempt: int | None = None
    fence: int | None = None


class Outcome(NamedTuple):
    """What became of an ack, nack, release. `disposition`: "requeued", "dead", "cancelled" or None."""

    ok: bool
    stale: bool = False
    disposition: str | None = None


class Extended(NamedTuple):
    lost: list[str]
    cancelled: list[str]


class CancelReply(NamedTuple):
    """`state`: the job's state after the call; "leased" means its holder has been asked; "unknown": no such job."""

    ok: bool
    state: str


class JobResult(NamedTuple):
    """`state` is a JobState's value or "unknown"."""

    state: str
    result: bytes | None = None


class DeadLetter(NamedTuple):
    job_id: str
    attempts: int
    last_error: str | None
    body: bytes
    history: tuple[str, ...] = ()


class DeadPage(NamedTuple):
    jobs: list[DeadLetter]
    next: str | None
    """The cursor of the page after this one; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """`counts` has ready, delayed, leased, done, dead, cancelled. `oldest_ready_s` None: nothing is ready."""

    counts: Mapping[str, int]
    paused: bool
    workers: int
    oldest_ready_s: float | None
    totals: Mapping[str, int]


class Why(NamedTuple):
    state: str
    why: str


class WorkerInfo(NamedTuple):
    worker: str
    held: int
    up: bool


class Cancel(NamedTuple):
    """An order: give this delivery up."""

    job_id: str
    fence: int


class Lost(NamedTuple):
    """An order: this delivery is no longer yours."""

    job_id: str
    fence: int


Order = Cancel | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A continuation another queue must get. Kept until `QueueState.sent(note_id)`."""

    note_id: int
    prefix: str
    job: NewJob


HandedOut = tuple[Waiter, list[Delivery]]
"""Jobs, to a claim that waited for them."""


@dataclass(slots=True)
class Effects:
    """What one turn wants done. Only `writes` goes to the medium; the rest follows once it is durable."""

    writes: WriteBatch = field(default_factory=WriteBatch)
    handed_out: list[HandedOut] = field(default_factory=list)
    answers: list[tuple[Waiter, Any]] = field(default_factory=list)
    """A claim whose waiting is over gets an empty list, a result's waiter a JobResult."""
    orders: list[tuple[str, Order]] = field(default_factory=list)
    notify: bool = False
    """Work became ready that no waiting claim took."""
    outgoing: list[Outgoing] = field(default_factory=list)


class InvalidChordError(BadRequestError, ValueError):
    """A report whose index does not fit its chord. A ValueError too, as peer 0.3 raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as `QueueStore`'s callers see it: a copy, with peer 0.3's attribute names."""

    id: str
    data: bytes
    state: JobState = JobState.READY
    attempts: int = 0
    max_attempts: int = 5
    enqueued_at: float = 0.0
    lease_until: float = 0.0
    not_before: float = 0.0
    priority: int = 0
    seq: int = 0
    last_error: str | None = None
    result: str | None = None
    """Base64 of the result, when kept."""
    completed_at: float = 0.0
    wf: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    fence: int = 0
    crashes: int = 0
    history: Sequence[str] = ()
