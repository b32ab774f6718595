"""What holders say about their deliveries: done, failed, handed back, still at it. Stale words change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from istos_worker.queue.endings import Endings
from istos_worker.queue.leases import Leases
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import check_result, check_seconds, short_error
from istos_worker.queue.records import (
    CANCELLED,
    DELAYED,
    DONE,
    LEASED,
    CancelReply,
    Extended,
    Instant,
    Job,
    JobRef,
    Outcome,
)

OK = Outcome(True)
STALE = Outcome(False, True)
REFUSED = Outcome(False)


def is_current(job: Job, ref: JobRef) -> bool:
    """Whether the reference names the job's latest delivery. A fence decides where given."""
    if ref.fence is not None:
        return job.fence == ref.fence
    return ref.attempt is None or job.attempts == ref.attempt


def is_fenced(ref: JobRef) -> bool:
    return ref.fence is not None or ref.attempt is not None


class Outcomes:
    __slots__ = ("_endings", "_leases", "_ledger")

    def __init__(self, ledger: Ledger, leases: Leases, endings: Endings) -> None:
        self._ledger = ledger
        self._leases = leases
        self._endings = endings

    def ack(self, ref: JobRef, now: Instant, result: bytes | None, *, advance: bool) -> Outcome:
        check_result(result, self._ledger.settings)
        job = self._ledger.by_id.get(ref.job_id)
        if job is None:
            return self._ack_of_forgotten(ref)
        if job.state == LEASED and is_current(job, ref):
            self._leases.drop(job)
        elif job.state == DONE and is_current(job, ref):
            return OK  # a repeat
        elif job.state > DELAYED or is_fenced(ref):
            return self._not_current(ref)
        self._endings.finish(job, result, now, advance=advance)
        return OK

    def _ack_of_forgotten(self, ref: JobRef) -> Outcome:
        fence = self._ledger.tombs.fence_of(ref.job_id)
        if fence is None:
            return REFUSED
        if ref.fence is not None and ref.fence != fence:
            return self._not_current(ref)
        return OK

    def nack(
        self, ref: JobRef, now: Instant, error: str | None, *, retry_after_s: float | None, discard: bool
    ) -> Outcome:
        if retry_after_s is not None:
            check_seconds("retry_after", retry_after_s)
        job = self._held(ref)
        if job is None:
            return self._not_current(ref)
        error = short_error(error)
        leases = self._leases
        leases.drop(job)
        self._ledger.totals.nacked += 1
        if discard and not job.cancel_asked:
            self._endings.die(job, error or "discarded", now)
            return Outcome(True, False, "dead")
        delay_s = leases.backoff_s(job) if retry_after_s is None else retry_after_s
        return Outcome(True, False, leases.failed(job, error, now, delay_s=delay_s))

    def release(self, ref: JobRef, now: Instant, *, delay_s: float) -> Outcome:
        check_seconds("delay", delay_s)
        job = self._held(ref)
        if job is None:
            return self._not_current(ref)
        self._leases.give_back(job, now, delay_s=delay_s)
        self._ledger.totals.released += 1
        return OK

    def cancelled(self, ref: JobRef, now: Instant) -> Outcome:
        job = self._held(ref)
        if job is None:
            forgotten = self._ledger.by_id.get(ref.job_id)
            if forgotten is not None and forgotten.state == CANCELLED and is_current(forgotten, ref):
                return Outcome(True, False, "cancelled")  # a repeat
            return self._not_current(ref)
        self._leases.drop(job)
        self._endings.cancel(job, now)
        return Outcome(True, False, "cancelled")

    def extend(self, refs: Sequence[JobRef], now: Instant) -> Extended:
        lost: list[str] = []
        cancelled: list[str] = []
        for ref in refs:
            job = self._held(ref)
            if job is None:
                lost.append(ref.job_id)
                continue
            self._leases.renew(job, now)
            if job.cancel_asked:
                cancelled.append(ref.job_id)
        return Extended(lost, cancelled)

    def cancel(self, job_id: str, now: Instant) -> CancelReply:
        job = self._ledger.by_id.get(job_id)
        if job is None:
            return CancelReply(False, "unknown")
        if job.state == LEASED:
            self._leases.ask_to_cancel(job)
            return CancelReply(True, "leased")
        if job.state <= DELAYED:
            self._endings.cancel(job, now)
        return CancelReply(job.state == CANCELLED, job.public_state.value)

    def _held(self, ref: JobRef) -> Job | None:
        """The job, while the delivery that the reference names is the one under way."""
        job = self._ledger.by_id.get(ref.job_id)
        return job if job is not None and job.state == LEASED and is_current(job, ref) else None

    def _not_current(self, ref: JobRef) -> Outcome:
        """Stale when a delivery was named and is over; otherwise there was nothing to do it to."""
        known = ref.job_id in self._ledger.by_id or ref.job_id in self._ledger.tombs
        if not known or not is_fenced(ref):
            return REFUSED
        self._ledger.totals.stale += 1
        return STALE
