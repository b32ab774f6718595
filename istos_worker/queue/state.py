"""The queue as a pure, synchronous state machine. No clock, no I/O, no asyncio: every call is given its Instant.

The rules live in the modules this one joins: intake (coming in), claims (handing out), leases (holding, failing),
outcomes (what holders say), endings (done, dead, cancelled), workflows and barriers (what follows), over one ledger.
docs/queue.md has the states and the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from istos_worker.errors import BadRequestError, StorageUnavailableError
from istos_worker.queue.alike import BatchEnqueued, NewBatch
from istos_worker.queue.bulk import BulkDone
from istos_worker.queue.claims import Claims
from istos_worker.queue.endings import Endings
from istos_worker.queue.heads import CLOSED, OUTGOING, REPORT, TOMBSTONES, decode_head, decode_job
from istos_worker.queue.insight import Insight
from istos_worker.queue.intake import Intake
from istos_worker.queue.leases import Leases
from istos_worker.queue.ledger import FENCE_NOTE, Ledger
from istos_worker.queue.outcomes import Outcomes
from istos_worker.queue.parking import ParkedClaims
from istos_worker.queue.records import (
    DELAYED,
    LEASED,
    PARKED,
    CancelReply,
    ClaimRequest,
    DeadPage,
    Delivery,
    Effects,
    Enqueued,
    Extended,
    HandedOut,
    Instant,
    Job,
    JobRef,
    JobResult,
    NewJob,
    Outcome,
    Parked,
    QueueSettings,
    Stats,
    Waiter,
    Why,
    WorkerInfo,
)
from istos_worker.queue.workflows import Workflows
from istos_worker.storage.protocol import Row

PAUSED_NOTE = "paused"


class QueueState:
    """One queue. `random` yields numbers from 0 to 1, for jitter."""

    __slots__ = (
        "_claims",
        "_endings",
        "_insight",
        "_intake",
        "_leases",
        "_ledger",
        "_outcomes",
        "_parked",
        "_workflows",
    )

    def __init__(self, settings: QueueSettings, *, random: Callable[[], float] | None = None) -> None:
        ledger = self._ledger = Ledger(settings, random)
        self._parked = ParkedClaims(ledger.horizon)
        self._intake = Intake(ledger)
        self._workflows = Workflows(ledger, self._intake)
        self._endings = Endings(ledger, self._intake, self._workflows)
        self._leases = Leases(ledger, self._endings, self._parked)
        self._claims = Claims(ledger, self._leases, self._parked)
        self._outcomes = Outcomes(ledger, self._leases, self._endings)
        self._insight = Insight(ledger, self._leases, self._claims, self._workflows)

    @property
    def settings(self) -> QueueSettings:
        return self._ledger.settings

    def configure(self, settings: QueueSettings) -> None:
        """From now on the queue behaves like this; what is under way keeps its times."""
        self._ledger.settings = settings

    @property
    def counts(self) -> Sequence[int]:
        """Jobs by their inner state, in the order of COUNT_NAMES."""
        return self._ledger.counts

    @property
    def reclaimed(self) -> int:
        """How many deliveries ended because their holder fell silent or died."""
        return self._ledger.totals.expired_leases + self._ledger.totals.crashed

    # reading back: notes first, then rows in rising order, then loaded()

    def load_notes(self, notes: Mapping[str, bytes], now: Instant) -> None:
        self._ledger.paused = PAUSED_NOTE in notes
        self._ledger.resume_fence(int(notes.get(FENCE_NOTE, b"0")))
        self._intake.load_ticks(notes)

    def load_rows(self, rows: Sequence[Row], now: Instant) -> None:
        """Raises StorageUnavailableError for a record this version cannot read."""
        for row in rows:
            fields = decode_head(row.head, row.seq)
            self._ledger.seen_seq(row.seq)
            try:
                self._load_row(fields, row, now)
            except (ValueError, IndexError, TypeError) as broken:
                raise StorageUnavailableError(f"record {row.seq} is damaged: {broken}") from broken

    def _load_row(self, fields: list[object], row: Row, now: Instant) -> None:
        match fields[1]:
            case int():
                self._load_job(*decode_job(fields, row.seq, row.body), now)
            case kind if kind == TOMBSTONES:
                _, _, is_random, buried_at, pairs = fields
                self._ledger.tombs.load(row.seq, is_random, buried_at, pairs, now)  # type: ignore[arg-type]
            case kind if kind == REPORT:
                self._workflows.barriers.load_report(fields, row.seq, row.body)
            case kind if kind == CLOSED:
                self._workflows.barriers.load_closed(fields, row.seq, now)
            case kind if kind == OUTGOING:
                self._workflows.load_outgoing(fields, row.seq, row.body)
            case kind:
                raise ValueError(f"unknown kind {kind!r}")

    def _load_job(self, job: Job, worker: str | None, tokened: bool, now: Instant) -> None:
        self._ledger.admit(job)
        if job.state == LEASED:
            self._intake.restore(job, now)
            self._leases.restore(job, worker, tokened, now)
        elif job.state <= DELAYED:
            self._intake.restore(job, now)
        else:
            self._endings.restore(job, now)

    def loaded(self, now: Instant) -> None:
        """All rows have been read: time goes on from here."""
        self._ledger.fed = self._ledger.woke = bool(self._ledger.ready.lines)
        self.tick(now)

    # producers

    def enqueue(self, new: NewJob, now: Instant) -> Enqueued:
        return self._intake.enqueue(new, now)

    def enqueue_many(self, jobs: Sequence[NewJob], now: Instant) -> list[Enqueued]:
        return self._intake.enqueue_many(jobs, now)

    def enqueue_alike(self, batch: NewBatch, now: Instant) -> BatchEnqueued:
        return self._intake.enqueue_alike(batch, now)

    def cancel(self, job_id: str, now: Instant) -> CancelReply:
        return self._outcomes.cancel(job_id, now)

    def last_tick(self, schedule: str) -> str | None:
        return self._intake.ticks.get(schedule)

    # workers

    def claim(self, request: ClaimRequest, now: Instant) -> list[Delivery] | Parked:
        """The jobs, now; or PARKED, and the waiter gets a list of deliveries later, empty when its time is over."""
        return self._claims.claim(request, now)

    def ack(
        self, ref: JobRef, now: Instant, *, result: bytes | None = None, advance: bool = False
    ) -> Outcome:
        """`advance`: this owner, not the holder, enqueues what follows in the job's workflow."""
        return self._outcomes.ack(ref, now, result, advance=advance)

    def nack(
        self,
        ref: JobRef,
        now: Instant,
        *,
        error: str | None = None,
        retry_after_s: float | None = None,
        discard: bool = False,
    ) -> Outcome:
        """`retry_after_s` None: the queue's backoff."""
        return self._outcomes.nack(ref, now, error, retry_after_s=retry_after_s, discard=discard)

    def release(self, ref: JobRef, now: Instant, *, delay_s: float = 0.0) -> Outcome:
        return self._outcomes.release(ref, now, delay_s=delay_s)

    def cancelled(self, ref: JobRef, now: Instant) -> Outcome:
        """The holder gave up a job that was to be cancelled."""
        return self._outcomes.cancelled(ref, now)

    def extend(self, refs: Sequence[JobRef], now: Instant) -> Extended:
        return self._outcomes.extend(refs, now)

    def report(
        self, chord_id: str, index: int, size: int, result_b64: str | None, now: Instant
    ) -> list[str | None] | None:
        """Raises InvalidChordError, which is a BadRequestError and a ValueError."""
        return self._workflows.report(chord_id, index, size, result_b64, now)

    def worker_up(self, worker: str, now: Instant) -> None:
        self._leases.worker_up(worker)

    def worker_down(self, worker: str, now: Instant) -> None:
        self._leases.worker_down(worker, now)

    def bury(self, worker: str, reason: str, running: frozenset[str] | None, now: Instant) -> list[str]:
        """`running` None: nobody knows which of its jobs were running, so all of them are charged."""
        return self._leases.bury(worker, reason, running, now)

    # operators

    def pause(self, now: Instant) -> None:
        if not self._ledger.paused:
            self._ledger.paused = True
            self._ledger.note(PAUSED_NOTE, b"1")

    def resume(self, now: Instant) -> None:
        if self._ledger.paused:
            self._ledger.paused = False
            self._ledger.fed = self._ledger.woke = True
            self._ledger.note(PAUSED_NOTE, None)

    def requeue(self, job_id: str | None, now: Instant) -> int:
        """A dead letter, or all of them (None), back to ready."""
        return self._endings.requeue(job_id, now)

    def purge(self, job_id: str | None, now: Instant) -> int:
        return self._endings.purge(job_id)

    def requeue_all(self, waiter: Waiter, now: Instant) -> BulkDone | Parked:
        """As requeue(None), in slices when there are many: then the waiter gets a BulkDone."""
        return self._endings.requeue_all(waiter, now)

    def purge_all(self, waiter: Waiter, now: Instant) -> BulkDone | Parked:
        """As purge(None), in slices when there are many: then the waiter gets a BulkDone."""
        return self._endings.purge_all(waiter, now)

    def dead_letters(self, *, limit: int = 1000, after: str | None = None) -> DeadPage:
        if limit < 1:
            raise BadRequestError(f"limit must be at least 1, got {limit}")
        return self._endings.dead.page(limit, after)

    def dead_jobs(self) -> list[Job]:
        """All dead letters, to read."""
        return self._endings.dead.all()

    def stats(self, now: Instant) -> Stats:
        return self._insight.stats(now)

    def why(self, job_id: str, now: Instant) -> Why:
        return self._insight.why(job_id, now)

    def workers(self, now: Instant) -> list[WorkerInfo]:
        return self._insight.workers()

    # results

    def job(self, job_id: str) -> Job | None:
        """The job itself, to read."""
        return self._ledger.by_id.get(job_id)

    def result(self, job_id: str, now: Instant) -> JobResult:
        job = self._ledger.by_id.get(job_id)
        return JobResult("unknown") if job is None else JobResult(job.public_state.value, job.result)

    def await_result(self, waiter: Waiter, job_id: str, now: Instant, *, wait_s: float) -> JobResult | Parked:
        """The result if there is one or never will be; else PARKED, and the waiter gets a JobResult later."""
        job = self._ledger.by_id.get(job_id)
        if job is None or not self._ledger.is_live(job) or wait_s <= 0:
            return self.result(job_id, now)
        self._ledger.result_waits.wait(waiter, job_id, now.mono + wait_s)
        return PARKED

    def withdraw(self, waiter: Waiter) -> None:
        """Its caller's patience is over, or it went away: it gets nothing any more."""
        parked = self._parked.of_waiter(waiter)
        if parked is not None:
            self._parked.leave(parked)
        self._ledger.result_waits.withdraw(waiter)
        self._endings.bulk.withdraw(waiter)

    def surrender(self) -> list[Waiter]:
        """Lets go of everyone who waits: this state will answer nobody any more."""
        return [
            *self._parked.surrender(),
            *self._ledger.result_waits.surrender(),
            *self._endings.bulk.surrender(),
        ]

    def alive_workers(self) -> list[str]:
        """Whose tokens are up: the mesh's knowledge, which outlives a state."""
        return [holder.id for holder in self._leases.holders.by_id.values() if holder.up]

    # continuations for other queues

    def sent(self, note_id: int, now: Instant) -> None:
        """The other owner has the continuation: strike it out."""
        self._workflows.sent(note_id)

    def refused(self, note_id: int, reason: str, now: Instant) -> None:
        """The other owner will never have the continuation: it becomes a dead letter here, and goes out again when it
        is requeued."""
        self._endings.bounce(note_id, reason, now)

    # time and effects

    def tick(self, now: Instant) -> None:
        """Fires what is due, then serves the claims that wait."""
        ledger = self._ledger
        if now.mono >= ledger.horizon.at:
            self._fire(now)
            ledger.horizon.renew()
        if ledger.fed and self._parked:
            self._claims.serve(now)

    def _fire(self, now: Instant) -> None:
        mono = now.mono
        ledger = self._ledger
        self._leases.expire(now)
        self._intake.mature(mono)
        self._endings.expire(now)
        self._endings.bulk.go_on(now)
        self._claims.expire(now)
        while (due := ledger.result_waits.pop_due(mono)) is not None:
            job_id, waiter = due
            ledger.answer(waiter, self.result(job_id, now))
        self._workflows.barriers.expire(mono)
        ledger.tombs.expire(mono)

    @property
    def due_at(self) -> float:
        """Before that time, on the monotonic clock, tick() only serves claims. It may be too early; next_due() is
        exact, and takes longer."""
        return self._ledger.horizon.at

    def next_due(self) -> float | None:
        """When tick() has something to do, on the monotonic clock."""
        return self._ledger.horizon.next_due()

    def is_somebody_told(self) -> bool:
        return self._ledger.is_somebody_told()

    def take_early(self) -> list[HandedOut]:
        """Of what take_effects() would give, what need not wait until the writes are durable. Call tick() before."""
        return self._ledger.take_early()

    def take_effects(self, *, with_writes: bool = True) -> Effects:
        """What this turn wants done; forgotten here. Call tick() before, so that nobody waits in vain.
        `with_writes` False: nobody will ever read them back, and the work of encoding them is saved."""
        return self._ledger.take_effects(with_writes=with_writes)
