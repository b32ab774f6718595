"""How a job comes in: the door's checks, ids and keys already taken, ticks already fired. Knows producers; not
holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count

from istos_worker.errors import BadRequestError
from istos_worker.queue.alike import BatchEnqueued, NewBatch
from istos_worker.queue.bodies import task_of
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import MAX_SCHEDULES, check_new_job, derived_id
from istos_worker.queue.records import DELAYED, READY, Enqueued, Instant, Job, NewJob
from istos_worker.wire.limits import MAX_BATCH

TICK_NOTE = "tick:"
MAX_MATURED_AT_ONCE = 10_000


class Intake:
    __slots__ = ("_ledger", "ticks")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ticks: dict[str, str] = {}
        """The last tick of every schedule."""

    def enqueue(self, new: NewJob, now: Instant) -> Enqueued:
        check_new_job(new, self._ledger.settings)
        if new.schedule is not None:
            self._check_room(new.schedule)
        return self._enqueue(new, now)

    def enqueue_many(self, jobs: Sequence[NewJob], now: Instant) -> list[Enqueued]:
        """All of them, or an error and none."""
        if len(jobs) > MAX_BATCH:
            raise BadRequestError(f"a batch has at most {MAX_BATCH} jobs, got {len(jobs)}")
        settings = self._ledger.settings
        fired: set[tuple[str, str]] = set()
        for index, new in enumerate(jobs):
            check_new_job(new, settings)
            if new.schedule is not None and new.tick is not None:
                self._check_room(new.schedule)
                if self._is_new_tick(new.schedule, new.tick):
                    fired.add((new.schedule, new.tick))
                if new.job_id is None:
                    new.job_id = derived_id(tick_id(new.schedule, new.tick), f".{index}")
        return [self._enqueue(new, now, fired) for new in jobs]

    def enqueue_alike(self, batch: NewBatch, now: Instant) -> BatchEnqueued:
        """All of them, or an error and none. As `enqueue_many`, at a fraction of the cost."""
        if batch.is_plain and 0 < len(batch) <= MAX_BATCH:
            check_new_job(batch.strictest(), self._ledger.settings)
            job_ids = self._fresh_ids(batch)
            if job_ids is not None:
                self._admit_plain(batch, job_ids, now)
                return BatchEnqueued(job_ids)
        done = self.enqueue_many(batch.jobs(), now)
        return BatchEnqueued([one.job_id for one in done], sum(one.duplicate for one in done))

    def _fresh_ids(self, batch: NewBatch) -> list[str] | None:
        """None: some of them are held already."""
        ledger = self._ledger
        if batch.base_id is None:
            return [ledger.new_id() for _ in batch.bodies]
        job_ids = [f"{batch.base_id}.{index}" for index in range(len(batch))]
        is_fresh = ledger.by_id.keys().isdisjoint(job_ids) and ledger.tombs.isdisjoint(job_ids)
        return job_ids if is_fresh else None

    def _admit_plain(self, batch: NewBatch, job_ids: Sequence[str], now: Instant) -> None:
        ledger, like = self._ledger, batch.like
        max_attempts, priority = like.max_attempts or ledger.settings.max_attempts, like.priority
        wall = now.wall
        tasks = [task_of(body) if b'"task"' in body else None for body in batch.bodies]
        numbered = zip(count(ledger.reserve_seqs(len(batch))), job_ids, batch.bodies, tasks, strict=False)
        ledger.admit_ready(
            [
                Job(seq, job_id, body, max_attempts, wall, priority, task)
                for seq, job_id, body, task in numbered
            ]
        )
        ledger.totals.enqueued += len(job_ids)

    def continuation(self, new: NewJob, now: Instant) -> Enqueued:
        """A job of our own making: its parts passed the door before, whatever they add up to now."""
        return self._enqueue(new, now)

    def _enqueue(
        self, new: NewJob, now: Instant, fired: AbstractSet[tuple[str, str]] = frozenset()
    ) -> Enqueued:
        """`fired`: ticks that this very batch fires, new to all its members."""
        ledger = self._ledger
        if new.schedule is not None and (duplicate := self._fire(new, fired)) is not None:
            return duplicate
        job_id = new.job_id
        if job_id is None:
            job_id = ledger.new_id()
        elif job_id in ledger.by_id or job_id in ledger.tombs:
            ledger.totals.duplicates += 1
            return Enqueued(job_id, True)
        if new.unique_key is not None and (taken := ledger.by_key.get(new.unique_key)) is not None:
            ledger.totals.duplicates += 1
            return Enqueued(taken.id, True)
        self._admit(new, job_id, now)
        ledger.totals.enqueued += 1
        return Enqueued(job_id)

    def _admit(self, new: NewJob, job_id: str, now: Instant) -> None:
        ledger = self._ledger
        body = new.body
        job = Job(
            ledger.next_seq(),
            job_id,
            body,
            new.max_attempts or ledger.settings.max_attempts,
            now.wall,
            new.priority,
            task_of(body) if b'"task"' in body else None,
        )
        if new.wf is not None:
            job.wf = new.wf
        if new.correlation_id is not None:
            job.correlation_id = new.correlation_id
        if new.traceparent is not None:
            job.traceparent = new.traceparent
        if new.unique_key is not None:
            job.unique_key = new.unique_key
            ledger.by_key[new.unique_key] = job
        if new.expires_s is not None:
            job.expires_at = now.wall + new.expires_s
            ledger.expiries.set(job.seq, now.mono + new.expires_s)
        if new.delay_s > 0:
            job.state = DELAYED
            job.not_before = now.wall + new.delay_s
            ledger.delays.set(job.seq, now.mono + new.delay_s)
        else:
            ledger.ready.add(job)
            ledger.fed = ledger.woke = True
        ledger.admit(job)
        ledger.changed(job)

    def mature(self, mono: float) -> None:
        """Delayed jobs whose time has come are ready."""
        ledger = self._ledger
        for _ in range(MAX_MATURED_AT_ONCE):
            seq = ledger.delays.pop_due(mono)
            if seq is None:
                return
            job = ledger.by_seq.get(seq)
            if job is not None and job.state == DELAYED:
                ledger.make_ready(job)

    # schedules

    def _check_room(self, schedule: str) -> None:
        if schedule not in self.ticks and len(self.ticks) >= MAX_SCHEDULES:
            raise BadRequestError(
                f"this queue remembers {MAX_SCHEDULES} schedules already, too many for a new one"
            )

    def _is_new_tick(self, schedule: str, tick: str) -> bool:
        last = self.ticks.get(schedule)
        return last is None or tick > last

    def _fire(self, new: NewJob, fired: AbstractSet[tuple[str, str]]) -> Enqueued | None:
        """Notes the tick and gives the job the tick's id; or the answer, when this tick is not after the last."""
        assert new.schedule is not None
        assert new.tick is not None
        if new.job_id is None:
            new.job_id = tick_id(new.schedule, new.tick)
        if not self._is_new_tick(new.schedule, new.tick):
            if (new.schedule, new.tick) in fired:
                return None
            self._ledger.totals.duplicates += 1
            return Enqueued(new.job_id, True)
        self.ticks[new.schedule] = new.tick
        self._ledger.note(TICK_NOTE + new.schedule, new.tick.encode())
        return None

    def load_ticks(self, notes: Mapping[str, bytes]) -> None:
        for name, value in notes.items():
            if name.startswith(TICK_NOTE):
                self.ticks[name.removeprefix(TICK_NOTE)] = value.decode()

    # reading back

    def restore(self, job: Job, now: Instant) -> None:
        """A job read from the medium takes its place among those that wait."""
        ledger = self._ledger
        if job.unique_key is not None and ledger.is_live(job):
            ledger.by_key[job.unique_key] = job
        if job.expires_at and job.state <= DELAYED and not job.attempts:
            ledger.expiries.set(job.seq, ledger.instant_of(job.expires_at, now))
        if job.state == READY:
            ledger.ready.add(job)
        elif job.state == DELAYED:
            ledger.delays.set(job.seq, ledger.instant_of(job.not_before, now))


def tick_id(schedule: str, tick: str) -> str:
    """The id of a tick's job: the same wherever and whenever it is enqueued."""
    return derived_id(f"{schedule}.{tick}", ".tick")
