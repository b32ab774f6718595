"""How long a holder may keep a job, and what a failed delivery leads to (CONTRACT.md section 4, rules 3 and 5).

A holder whose liveliness token is up needs no timer at all. One without a token has `lease_s` per job. One whose
token dropped, or who held jobs when the owner stopped, has one grace for all it holds.
"""

from __future__ import annotations

from istos_worker.queue.endings import Endings, remember_error
from istos_worker.queue.holders import Holder, Holders
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import short_error
from istos_worker.queue.parking import ParkedClaims
from istos_worker.queue.records import DELAYED, LEASED, Cancel, Delivery, Instant, Job, Lost
from istos_worker.queue.timers import Deadlines


class Leases:
    __slots__ = ("_endings", "_ledger", "_parked", "graces", "holders", "timers")

    def __init__(self, ledger: Ledger, endings: Endings, parked: ParkedClaims) -> None:
        self._ledger = ledger
        self._endings = endings
        self._parked = parked
        self.holders = Holders()
        self.timers = Deadlines(ledger.horizon)
        """Lease ends of jobs whose holder has no token, by job."""
        self.graces = Deadlines(ledger.horizon)
        """When missing holders are given up, by holder."""

    # holding

    def hold(self, job: Job, holder: Holder | None, claim_seq: int, lease_s: float, now: Instant) -> Delivery:
        """The job is this holder's, under a new fence."""
        ledger = self._ledger
        ledger.move(job, LEASED)
        job.attempts += 1
        job.fence = ledger.next_fence()
        job.claim_seq = claim_seq
        job.lease_until = now.wall + lease_s
        job.holder = holder
        if holder is not None:
            holder.held[job.seq] = job
        if holder is None or not holder.tokened:
            self.timers.set(job.seq, now.mono + lease_s)
        if job.expires_at:
            ledger.expiries.drop(job.seq)
        return Delivery(job, job.attempts, job.fence)

    def drop(self, job: Job) -> None:
        """Nobody holds the job any more. The caller gives it its next state."""
        holder = job.holder
        if holder is not None:
            holder.held.pop(job.seq, None)
            job.holder = None
        self.timers.drop(job.seq)
        job.lease_until = 0.0

    def renew(self, job: Job, now: Instant) -> None:
        holder = job.holder
        lease_s = self._ledger.settings.lease_s
        job.lease_until = now.wall + lease_s
        if holder is not None and holder.tokened:
            self.sign_of_life(holder, lease_s, now)
        else:
            self.timers.set(job.seq, now.mono + lease_s)

    def sign_of_life(self, holder: Holder, for_s: float, now: Instant) -> None:
        """A missing holder spoke, so its jobs are not lost yet. A claim proves little, and gains it one more grace:
        it may have been under way when its process died."""
        if holder.is_missing:
            due = max(now.mono + for_s, self.graces.get(holder.number) or 0.0)
            self.graces.set(holder.number, due)

    # tokens

    def worker_up(self, worker: str) -> None:
        if self.holders.is_buried(worker):
            return
        holder = self.holders.ensure(worker)
        holder.up = holder.tokened = True
        self.graces.drop(holder.number)
        for seq in holder.held:
            self.timers.drop(seq)
        if holder.parked is not None:
            self._parked.resume(holder.parked)
            self._ledger.fed = True

    def worker_down(self, worker: str, now: Instant) -> None:
        holder = self.holders.get(worker)
        if holder is None or not holder.up:
            return
        holder.up = False
        if holder.parked is not None:
            self._parked.suspend(holder.parked)
        if holder.held or holder.parked is not None:
            self.graces.set(holder.number, now.mono + self._ledger.settings.grace_s)

    def bury(self, worker: str, reason: str, running: frozenset[str] | None, now: Instant) -> list[str]:
        """That process is dead for certain: its jobs are back at once; only those that were running are charged."""
        holder = self.holders.bury(worker)
        if holder is None:
            return []
        self.graces.drop(holder.number)
        self._dismiss(holder)
        jobs = list(holder.held.values())
        for job in jobs:
            if running is None or job.id in running:
                self.crashed(job, reason, now)
            else:
                self.give_back(job, now)
        return [job.id for job in jobs]

    def _dismiss(self, holder: Holder) -> None:
        parked = holder.parked
        if parked is not None:
            self._parked.leave(parked)
            self._ledger.answer(parked.waiter, [])

    # time

    def expire(self, now: Instant) -> None:
        while (seq := self.timers.pop_due(now.mono)) is not None:
            job = self._ledger.by_seq.get(seq)
            if job is not None and job.state == LEASED:
                self._lease_expired(job, now)
        while (number := self.graces.pop_due(now.mono)) is not None:
            holder = self.holders.numbered(number)
            if holder is not None and holder.is_missing:
                self._given_up(holder, now)

    def _lease_expired(self, job: Job, now: Instant) -> None:
        self._ledger.totals.expired_leases += 1
        if job.holder is not None:
            self._ledger.order(job.holder.id, Lost(job.id, job.fence))
        self.drop(job)
        self.failed(
            job, "lease expired: its holder neither finished nor renewed it in time", now, delay_s=0.0
        )

    def _given_up(self, holder: Holder, now: Instant) -> None:
        self._dismiss(holder)
        for job in list(holder.held.values()):
            self._ledger.order(holder.id, Lost(job.id, job.fence))
            self.crashed(job, "its liveliness token disappeared and did not come back", now)

    # what a delivery that did not end well leads to

    def crashed(self, job: Job, reason: str, now: Instant) -> None:
        """The holder died. Charged to the crash budget; never without a reason."""
        self.drop(job)
        job.crashes += 1
        self._ledger.totals.crashed += 1
        reason = (short_error(reason) or "").strip() or "reason unknown"
        text = reason if reason.startswith("worker lost") else f"worker lost: {reason}"
        if job.cancel_asked:
            self._endings.cancel(job, now)
        elif job.crashes >= max(1, self._ledger.settings.crash_budget):
            self._endings.die(job, text, now)
        else:
            remember_error(job, text)
            self._ledger.make_ready(job)

    def failed(self, job: Job, error: str | None, now: Instant, *, delay_s: float) -> str:
        """An attempt failed. Returns the disposition."""
        if job.cancel_asked:
            self._endings.cancel(job, now)
            return "cancelled"
        if job.attempts - job.crashes >= job.max_attempts:
            self._endings.die(job, error, now)
            return "dead"
        if error is not None:
            remember_error(job, error)
        else:
            job.last_error = None
        self.back(job, delay_s, now)
        return "requeued"

    def give_back(self, job: Job, now: Instant, *, delay_s: float = 0.0) -> None:
        """Released: as if this delivery had not been."""
        self.drop(job)
        job.attempts -= 1
        if job.cancel_asked:
            self._endings.cancel(job, now)
            return
        if job.expires_at and not job.attempts:
            self._ledger.expiries.set(job.seq, self._ledger.instant_of(job.expires_at, now))
        self.back(job, delay_s, now)

    def back(self, job: Job, delay_s: float, now: Instant) -> None:
        ledger = self._ledger
        if delay_s > 0:
            job.not_before = now.wall + delay_s
            ledger.move(job, DELAYED)
            ledger.delays.set(job.seq, now.mono + delay_s)
        else:
            ledger.make_ready(job)

    def backoff_s(self, job: Job) -> float:
        """How long to wait after this many failures: doubling, capped, with jitter."""
        settings = self._ledger.settings
        if settings.retry_backoff_s <= 0:
            return 0.0
        failures = min(max(1, job.attempts - job.crashes), 64)
        delay_s = min(settings.retry_backoff_s * 2.0 ** (failures - 1), settings.retry_backoff_max_s)
        jitter = settings.retry_jitter * (2.0 * self._ledger.random() - 1.0)
        return max(0.0, delay_s * (1.0 + jitter))

    def ask_to_cancel(self, job: Job) -> None:
        if not job.cancel_asked:
            job.cancel_asked = True
            self._ledger.changed(job)
        if job.holder is not None:
            self._ledger.order(job.holder.id, Cancel(job.id, job.fence))

    # reading back

    def restore(self, job: Job, worker: str | None, tokened: bool, now: Instant) -> None:
        """A job that was leased when the owner stopped stays with its holder for a while."""
        settings = self._ledger.settings
        if worker is None or not tokened:
            left_s = min(settings.lease_s, max(settings.grace_s, job.lease_until - now.wall))
            self.timers.set(job.seq, now.mono + left_s)
        if worker is None:
            return
        holder = self.holders.ensure(worker)
        job.holder = holder
        holder.held[job.seq] = job
        if tokened:
            holder.tokened = True
            self.graces.set(holder.number, now.mono + settings.grace_s)
        last = holder.last_seq
        if last is None or job.claim_seq > last:
            holder.last_seq, holder.granted = job.claim_seq, []
        if job.claim_seq == holder.last_seq:
            holder.granted.append(Delivery(job, job.attempts, job.fence))
