"""How a job's life ends: done, dead, cancelled, forgotten. Knows what follows an end; not why it came."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice

from istos_worker.errors import ConflictError
from istos_worker.queue.bulk import Bulk, BulkDone
from istos_worker.queue.intake import Intake
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import MAX_HISTORY, MAX_HISTORY_CHARS, MAX_REPLY_BYTES, derived_id, short_error
from istos_worker.queue.records import (
    CANCELLED,
    DEAD,
    DELAYED,
    DONE,
    READY,
    DeadLetter,
    DeadPage,
    Instant,
    Job,
    NewJob,
    Parked,
    Waiter,
)
from istos_worker.queue.workflows import Callback, Workflows, decode_workflow

MAX_FORGOTTEN_AT_ONCE = 5000
MAX_EXPIRED_AT_ONCE = 1000
_LETTER_BYTES = 200
"""Of a dead letter in a reply, beside its body and its error."""


class DeadLetters:
    """The dead, in the order of their numbers. Sorted when somebody looks, not when somebody dies."""

    __slots__ = ("_is_sorted", "_jobs", "_seqs")

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._seqs: list[int] = []
        self._is_sorted = True

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs[job.seq] = job
        self._is_sorted = self._is_sorted and (not self._seqs or job.seq > self._seqs[-1])
        self._seqs.append(job.seq)

    def remove(self, job: Job) -> None:
        del self._jobs[job.seq]
        if len(self._seqs) > 2 * len(self._jobs) + 64:
            self._seqs = list(self._jobs)
            self._is_sorted = False

    @property
    def last_seq(self) -> int:
        seqs = self._sorted()
        return seqs[-1] if seqs else 0

    def slice(self, after_seq: int, limit: int) -> list[Job]:
        seqs, jobs = self._sorted(), self._jobs
        later = islice(seqs, bisect_right(seqs, after_seq), None)
        return list(islice((jobs[seq] for seq in later if seq in jobs), limit))

    def all(self) -> list[Job]:
        return [self._jobs[seq] for seq in self._sorted() if seq in self._jobs]

    def _sorted(self) -> list[int]:
        if not self._is_sorted:
            self._seqs = sorted(self._jobs)
            self._is_sorted = True
        return self._seqs

    def page(self, limit: int, after: str | None) -> DeadPage:
        seqs = self._sorted()
        start = bisect_right(seqs, _cursor(after)) if after else 0
        letters: list[DeadLetter] = []
        last = 0
        room = MAX_REPLY_BYTES
        for index in range(start, len(seqs)):
            job = self._jobs.get(seqs[index])
            if job is None:
                continue
            if len(letters) == limit or room <= 0:
                return DeadPage(letters, str(last))
            last = job.seq
            room -= len(job.body) + len(job.last_error or "") + _LETTER_BYTES
            letters.append(
                DeadLetter(job.id, job.attempts, job.last_error, job.body, tuple(job.history or ()))
            )
        return DeadPage(letters, None)


def _cursor(after: str) -> int:
    return int(after) if after.isascii() and after.isdigit() and len(after) < 20 else 0


class Endings:
    __slots__ = ("_intake", "_ledger", "_workflows", "bulk", "dead")

    def __init__(self, ledger: Ledger, intake: Intake, workflows: Workflows) -> None:
        self._ledger = ledger
        self._intake = intake
        self._workflows = workflows
        self.dead = DeadLetters()
        self.bulk = Bulk(self.dead, ledger.answer, ledger.horizon)

    def finish(self, job: Job, result: bytes | None, now: Instant, *, advance: bool) -> None:
        """Done. Kept with its result, or forgotten but for its id."""
        ledger = self._ledger
        if job.wf is not None:
            if advance:
                self._workflows.advance(job, result, now)
            else:
                self._workflows.settled(job, now)
        self._let_go(job)
        ledger.totals.acked += 1
        if ledger.settings.keep_results:
            job.body = b""
            job.result = result
            self._keep(job, DONE, now)
        else:
            ledger.tombs.add(job.id, job.fence, now)
            ledger.forget(job)
        ledger.tell_result(job, "done", result)

    def die(self, job: Job, reason: str | None, now: Instant) -> None:
        """Out of attempts, or out of luck: kept among the dead letters until somebody decides."""
        ledger = self._ledger
        self._let_go(job)
        if reason is not None:
            remember_error(job, reason)
        job.completed_at = now.wall
        job.not_before = 0.0
        ledger.move(job, DEAD)
        ledger.totals.dead += 1
        self.dead.add(job)
        ledger.tell_result(job, "dead")
        if job.wf is not None:
            self._fail_member(job, job.last_error or "dead", now)

    def cancel(self, job: Job, now: Instant) -> None:
        ledger = self._ledger
        self._let_go(job)
        job.body = b""
        job.cancel_asked = False
        self._keep(job, CANCELLED, now)
        ledger.totals.cancelled += 1
        ledger.tell_result(job, "cancelled")
        if job.wf is not None:
            self._fail_member(job, "cancelled", now)

    def _keep(self, job: Job, state: int, now: Instant) -> None:
        ledger = self._ledger
        job.completed_at = now.wall
        job.not_before = 0.0
        ledger.move(job, state)
        ledger.keepings.set(job.seq, now.mono + ledger.settings.result_ttl_s)

    def _let_go(self, job: Job) -> None:
        """Takes a live job out of everything that expects it to go on."""
        ledger = self._ledger
        if job.state == READY:
            ledger.ready.discard(job)
        elif job.state == DELAYED:
            ledger.delays.drop(job.seq)
        if job.expires_at:
            ledger.expiries.drop(job.seq)
        if job.unique_key is not None and ledger.by_key.get(job.unique_key) is job:
            del ledger.by_key[job.unique_key]

    def _fail_member(self, job: Job, reason: str, now: Instant) -> None:
        callback = self._workflows.failed(job, reason, now)
        workflow = decode_workflow(job.wf)
        if callback is None or workflow is None or workflow.chord is None:
            return
        self._bear_dead(
            workflow.chord.id, callback, f"chord member {workflow.chord.index} failed: {reason}", now
        )

    def _bear_dead(self, chord_id: str, callback: Callback, reason: str, now: Instant) -> None:
        """A chord that fails leaves its callback as a dead letter, where people look for what went wrong."""
        if not self._workflows.is_own(callback.prefix):
            return
        new = NewJob(body=callback.data, job_id=derived_id(chord_id, ".cb"))
        enqueued = self._intake.continuation(new, now)
        if not enqueued.duplicate:
            self.die(self._ledger.by_id[enqueued.job_id], reason, now)

    def bounce(self, note_id: int, reason: str, now: Instant) -> None:
        """A continuation that its queue refuses for good stays here, as a dead letter."""
        ledger = self._ledger
        outgoing = ledger.unsent.get(note_id)
        if outgoing is None:
            return
        self._workflows.sent(note_id)
        new = outgoing.job
        if new.job_id is not None and (new.job_id in ledger.by_id or new.job_id in ledger.tombs):
            new.job_id = None
        job = ledger.by_id[self._intake.continuation(new, now).job_id]
        job.bound_for = outgoing.prefix
        self.die(job, short_error(f"queue {outgoing.prefix} refused it: {reason}"), now)

    # what was kept

    def expire(self, now: Instant) -> None:
        """Fires what is due: jobs that never started, and results kept long enough."""
        ledger = self._ledger
        for _ in range(MAX_EXPIRED_AT_ONCE):
            seq = ledger.expiries.pop_due(now.mono)
            if seq is None:
                break
            job = ledger.by_seq.get(seq)
            if job is not None and job.state <= DELAYED:
                self.die(job, "expired", now)
        for _ in range(MAX_FORGOTTEN_AT_ONCE):
            seq = ledger.keepings.pop_due(now.mono)
            if seq is None:
                break
            job = ledger.by_seq.get(seq)
            if job is not None and job.state in (DONE, CANCELLED):
                ledger.forget(job)

    def restore(self, job: Job, now: Instant) -> None:
        ledger = self._ledger
        if job.state == DEAD:
            self.dead.add(job)
        elif job.state in (DONE, CANCELLED):
            ttl_s = ledger.settings.result_ttl_s
            left_s = min(ttl_s, max(0.0, job.completed_at + ttl_s - now.wall))
            ledger.keepings.set(job.seq, now.mono + left_s)

    # dead letters

    def requeue(self, job_id: str | None, now: Instant) -> int:
        """Back to ready with a full count of attempts. Raises ConflictError when its unique key has a new holder."""
        if job_id is None:
            return sum(self._requeue(job) for job in self.dead.all())
        job = self._ledger.by_id.get(job_id)
        if job is None or job.state != DEAD:
            return 0
        if not self._requeue(job):
            raise ConflictError(f"job {job_id} cannot be requeued: its unique key is held by a newer job")
        return 1

    def _requeue(self, job: Job) -> bool:
        ledger = self._ledger
        if job.unique_key is not None:
            if job.unique_key in ledger.by_key:
                return False
            ledger.by_key[job.unique_key] = job
        self.dead.remove(job)
        if job.bound_for is not None:
            ledger.forget(job)
            self._workflows.post(job.bound_for, _as_new(job))
            return True
        job.attempts = job.crashes = 0
        job.completed_at = job.expires_at = 0.0
        job.cancel_asked = False
        ledger.make_ready(job)
        return True

    def purge(self, job_id: str | None) -> int:
        if job_id is None:
            jobs = self.dead.all()
        else:
            job = self._ledger.by_id.get(job_id)
            jobs = [job] if job is not None and job.state == DEAD else []
        return sum(self._purge(job) for job in jobs)

    def _purge(self, job: Job) -> bool:
        self.dead.remove(job)
        self._ledger.forget(job)
        return True

    def requeue_all(self, waiter: Waiter, now: Instant) -> BulkDone | Parked:
        return self.bulk.begin(self._requeue, waiter, now)

    def purge_all(self, waiter: Waiter, now: Instant) -> BulkDone | Parked:
        return self.bulk.begin(self._purge, waiter, now)


def _as_new(job: Job) -> NewJob:
    return NewJob(
        body=job.body,
        job_id=job.id,
        priority=job.priority,
        wf=job.wf,
        correlation_id=job.correlation_id,
        traceparent=job.traceparent,
    )


def remember_error(job: Job, error: str) -> None:
    """The last error whole, and the last few of them in short."""
    job.last_error = error
    history = job.history = job.history if job.history is not None else []
    history.append(error[:MAX_HISTORY_CHARS])
    if len(history) > MAX_HISTORY:
        del history[0]
