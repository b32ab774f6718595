"""QueueState does what the naive model does, whatever is said to it in whatever order, and over any crash."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from istos_worker.errors import ConflictError
from istos_worker.queue.records import (
    COUNT_NAMES,
    ClaimRequest,
    Delivery,
    Instant,
    JobRef,
    NewJob,
    Outcome,
    QueueSettings,
)
from istos_worker.queue.state import QueueState
from istos_worker.storage.protocol import Row, WriteBatch
from tests.unit.queue.fakes import FakeMedium, FakeWaiter
from tests.unit.queue.model import GRACE_S, Model, ModelJob

LEASE_S = 10.0
TTL_S = 50.0
MAX_ATTEMPTS = 3
CRASH_BUDGET = 2

BODIES = {
    "*": b'"plain"',
    "mail": b'{"task":"mail","args":[],"kwargs":{}}',
    "scan": b'{"task":"scan","args":[1],"kwargs":{}}',
}
tasks = st.sampled_from(sorted(BODIES))
workers = st.sampled_from(["a", "b", "c"])
wanted = st.sampled_from(
    [None, None, frozenset({"mail"}), frozenset({"mail", "*"}), frozenset({"scan", "mail"})]
)
jumps = st.sampled_from([0.0, 0.5, 1.0, 4.0, 5.0, 6.0, 10.0, 11.0, 40.0, 60.0, 700.0])


class Queue(RuleBasedStateMachine):
    @initialize(keep_results=st.booleans())
    def begin(self, keep_results: bool) -> None:
        self.settings = QueueSettings(
            prefix="q",
            lease_s=LEASE_S,
            max_attempts=MAX_ATTEMPTS,
            crash_budget=CRASH_BUDGET,
            keep_results=keep_results,
            result_ttl_s=TTL_S,
        )
        self.medium = FakeMedium()
        self.uncommitted: list[WriteBatch] = []
        self.mono, self.wall = 100.0, 1_000_000.0
        self.model = Model(keep_results, LEASE_S, TTL_S, CRASH_BUDGET)
        self.kept = copy.deepcopy(self.model)
        self.state = QueueState(self.settings)
        self.state.loaded(self.now)
        self.parked: dict[FakeWaiter, tuple[ClaimRequest, float]] = {}
        self.seen: list[JobRef] = []
        self.highest_fence = self.kept_fence = self.told_fence = 0
        self.claim_seqs = {"a": 0, "b": 0, "c": 0}
        self.order = 0

    @property
    def now(self) -> Instant:
        return Instant(self.wall, self.mono)

    # each rule is a turn: the operation, tick, effects

    def turn(self) -> None:
        self.state.tick(self.now)
        # A turn is applied when the one before it is durable, fences it reserved among it.
        early = [] if any(self.uncommitted) else self.state.take_early()
        effects = self.state.take_effects()
        self.uncommitted.append(effects.writes)
        given_up = self.model.tick(self.mono, self.wall)
        for waiter in list(self.parked):
            request, due = self.parked[waiter]
            if due <= self.mono or request.worker in given_up:
                self.expect_answer(waiter, effects.answers, [])
        self.told_fence = max(
            [self.told_fence, *(delivery.fence for _, handed in early for delivery in handed)]
        )
        for served, answer in (*early, *effects.handed_out, *effects.answers):
            if isinstance(served, FakeWaiter) and served in self.parked:
                request, _ = self.parked.pop(served)
                assert answer, "a parked claim was answered with nothing before its time"
                self.delivered(request, answer)

    def expect_answer(self, waiter: FakeWaiter, answers: list, expected: list) -> None:  # type: ignore[type-arg]
        assert (waiter, expected) in answers
        del self.parked[waiter]

    def delivered(self, request: ClaimRequest, deliveries: list[Delivery]) -> None:
        assert 0 < len(deliveries) <= request.n
        for delivery in deliveries:
            expected = self.model.ready(request.tasks)[0]
            assert delivery.job_id == expected.id, "not the first in the order"
            assert delivery.fence > self.highest_fence
            self.highest_fence = delivery.fence
            self.model.lease(expected, request.worker, delivery.fence, self.mono, self.wall)
            assert delivery.attempt == expected.attempts
            self.seen.append(JobRef(delivery.job_id, delivery.attempt, delivery.fence))
        if request.worker is not None and request.seq is not None:
            self.model.worker(request.worker).granted = [(one.job_id, one.fence) for one in deliveries]

    # producers

    @rule(
        task=tasks,
        priority=st.sampled_from([0, 0, 0, 5, -5]),
        delay=st.sampled_from([0.0, 0.0, 0.0, 3.0, 20.0]),
        chosen=st.sampled_from([None, None, "one", "two"]),
        key=st.sampled_from([None, None, None, "k"]),
        expires=st.sampled_from([None, None, None, 8.0]),
        max_attempts=st.sampled_from([None, 1]),
    )
    def enqueue(
        self,
        task: str,
        priority: int,
        delay: float,
        chosen: str | None,
        key: str | None,
        expires: float | None,
        max_attempts: int | None,
    ) -> None:
        new = NewJob(
            body=BODIES[task],
            priority=priority,
            delay_s=delay,
            job_id=chosen,
            unique_key=key,
            expires_s=expires,
            max_attempts=max_attempts,
        )
        done = self.state.enqueue(new, self.now)
        if chosen is not None and (chosen in self.model.jobs or chosen in self.model.tombs):
            assert done == (chosen, True)
        elif key is not None and (holder := self.model.key_holder(key)) is not None:
            assert done == (holder.id, True)
        else:
            assert not done.duplicate
            self.order += 1
            job = ModelJob(done.job_id, self.order, priority, task, max_attempts or MAX_ATTEMPTS, key=key)
            if delay:
                job.state, job.due, job.due_wall = "delayed", self.mono + delay, self.wall + delay
            if expires is not None:
                job.expires, job.expires_wall = self.mono + expires, self.wall + expires
            self.model.jobs[job.id] = job
            self.model.dirty.add(job.id)
            self.seen.append(JobRef(job.id))
        self.turn()

    # workers

    @rule(n=st.integers(1, 3), worker=st.one_of(st.none(), workers), wants=wanted, waits=st.booleans())
    def claim(self, n: int, worker: str | None, wants: frozenset[str] | None, waits: bool) -> None:
        waiter = FakeWaiter() if waits else None
        request = ClaimRequest(n=n, worker=worker, tasks=wants, waiter=waiter, wait_s=15.0 if waits else 0.0)
        if worker is not None:
            self.claim_seqs[worker] += 1
            request.seq = self.claim_seqs[worker]
        self.ask(request)
        self.turn()

    def ask(self, request: ClaimRequest) -> None:
        answer = self.state.claim(request, self.now)
        worker = request.worker
        if worker is not None and worker in self.model.buried:
            assert answer == []
            return
        if worker is not None:
            self.model.sign_of_life(worker, GRACE_S, self.mono)
            self.model.worker(worker).seq = request.seq
            self.model.worker(worker).granted = []
            self.end_parked(worker)
        if isinstance(answer, list):
            expected = [] if self.model.paused else self.model.ready(request.tasks)[: request.n]
            assert [one.job_id for one in answer] == [job.id for job in expected]
            if answer:
                self.delivered(request, answer)
            else:
                assert request.waiter is None
        else:
            assert isinstance(request.waiter, FakeWaiter)
            self.parked[request.waiter] = (request, self.mono + request.wait_s)

    def end_parked(self, worker: str) -> None:
        """The worker asked anew: its parked claim is over; the answer comes with the turn's effects."""
        for waiter, (request, _) in list(self.parked.items()):
            if request.worker == worker:
                del self.parked[waiter]

    @rule(worker=workers)
    def claim_again(self, worker: str) -> None:
        """The same claim arrives a second time."""
        known = self.model.workers.get(worker)
        if known is None or known.seq is None or worker in self.model.buried:
            return
        if any(request.worker == worker for request, _ in self.parked.values()):
            return
        answer = self.state.claim(ClaimRequest(n=3, worker=worker, seq=known.seq), self.now)
        self.model.sign_of_life(worker, GRACE_S, self.mono)
        assert isinstance(answer, list)
        still = [
            (job_id, fence)
            for job_id, fence in known.granted
            if (job := self.model.jobs.get(job_id)) and job.state == "leased" and job.fence == fence
        ]
        assert [(one.job_id, one.fence) for one in answer] == still
        self.turn()

    @rule(data=st.data(), what=st.sampled_from(["fence", "attempt", "both", "neither"]), result=st.booleans())
    def ack(self, data: st.DataObject, what: str, result: bool) -> None:
        ref = self.draw_ref(data, what)
        payload = b"42" if result else None
        outcome = self.state.ack(ref, self.now, result=payload)
        job = self.model.jobs.get(ref.job_id)
        if job is None:
            tomb = self.model.tombs.get(ref.job_id)
            if tomb is None:
                assert outcome == Outcome(False)
            elif ref.fence is not None and ref.fence != tomb.fence:
                assert outcome == Outcome(False, True)
            else:
                assert outcome == Outcome(True)
        elif job.state == "leased" and self.is_current(job, ref):
            assert outcome == Outcome(True)
            self.model.finish(job, payload, self.mono, self.wall)
        elif job.state == "done" and self.is_current(job, ref):
            assert outcome == Outcome(True)
        elif job.state in ("ready", "delayed") and ref.fence is None and ref.attempt is None:
            assert outcome == Outcome(True)
            self.model.finish(job, payload, self.mono, self.wall)
        else:
            assert not outcome.ok
            assert outcome.stale == (ref.fence is not None or ref.attempt is not None)
        self.turn()

    @rule(
        data=st.data(),
        what=st.sampled_from(["fence", "attempt", "both", "neither"]),
        retry=st.sampled_from([0.0, 0.0, 7.0]),
        discard=st.booleans(),
    )
    def nack(self, data: st.DataObject, what: str, retry: float, discard: bool) -> None:
        ref = self.draw_ref(data, what)
        outcome = self.state.nack(ref, self.now, error="boom", retry_after_s=retry, discard=discard)
        job = self.held_by(ref)
        if job is None:
            assert not outcome.ok
        elif discard and not job.cancel_asked:
            self.model.die(job, "boom")
            assert outcome == Outcome(True, False, "dead")
        else:
            expected = self.model.failed(job, "boom", retry, self.mono, self.wall)
            assert outcome == Outcome(True, False, expected)
        self.turn()

    @rule(data=st.data(), what=st.sampled_from(["fence", "both"]), delay=st.sampled_from([0.0, 0.0, 6.0]))
    def release(self, data: st.DataObject, what: str, delay: float) -> None:
        ref = self.draw_ref(data, what)
        outcome = self.state.release(ref, self.now, delay_s=delay)
        job = self.held_by(ref)
        assert outcome.ok == (job is not None)
        if job is not None:
            self.model.give_back(job, delay, self.mono, self.wall)
        self.turn()

    @rule(data=st.data(), what=st.sampled_from(["fence", "attempt"]))
    def extend(self, data: st.DataObject, what: str) -> None:
        ref = self.draw_ref(data, what)
        lost, cancelled = self.state.extend([ref], self.now)
        job = self.held_by(ref)
        assert lost == ([] if job is not None else [ref.job_id])
        if job is not None:
            assert cancelled == ([job.id] if job.cancel_asked else [])
            job.lease_until = self.wall + LEASE_S
            if job.worker is not None and self.model.worker(job.worker).tokened:
                self.model.sign_of_life(job.worker, LEASE_S, self.mono)
            else:
                job.lease_due = self.mono + LEASE_S
        self.turn()

    @rule(worker=st.sampled_from(["a", "b"]))
    def token_up(self, worker: str) -> None:
        self.state.worker_up(worker, self.now)
        if worker not in self.model.buried:
            known = self.model.worker(worker)
            known.up = known.tokened = True
            known.grace = None
            for job in self.model.held(worker):
                job.lease_due = None
        self.turn()

    @rule(worker=st.sampled_from(["a", "b"]))
    def token_down(self, worker: str) -> None:
        self.state.worker_down(worker, self.now)
        known = self.model.worker(worker)
        if known.up:
            known.up = False
            is_parked = any(request.worker == worker for request, _ in self.parked.values())
            if is_parked or self.model.held(worker):
                known.grace = self.mono + 5.0
        self.turn()

    @rule(worker=workers, charged=st.sampled_from(["all", "none", "some"]))
    def bury(self, worker: str, charged: str) -> None:
        held = self.model.held(worker)
        running = None
        if charged != "all":
            running = frozenset(job.id for job in held[: 1 if charged == "some" else 0])
        buried = self.state.bury(worker, "SIGKILL", running, self.now)
        assert set(buried) == {job.id for job in held}
        self.end_parked(worker)
        for job in held:
            if running is None or job.id in running:
                self.model.crashed(job, self.mono, self.wall)
            else:
                self.model.give_back(job, 0.0, self.mono, self.wall)
        self.model.workers.pop(worker, None)
        self.model.buried.add(worker)
        self.turn()

    # operators

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ref = self.draw_ref(data, "neither")
        reply = self.state.cancel(ref.job_id, self.now)
        job = self.model.jobs.get(ref.job_id)
        if job is None:
            assert reply == (False, "unknown")
        elif job.state == "leased":
            assert reply == (True, "leased")
            if not job.cancel_asked:
                job.cancel_asked = True
                self.model.dirty.add(job.id)
        elif job.state in ("ready", "delayed"):
            assert reply == (True, "cancelled")
            self.model.cancel(job, self.mono, self.wall)
        else:
            assert reply == (job.state == "cancelled", job.state)
        self.turn()

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        (self.state.pause if paused else self.state.resume)(self.now)
        self.model.paused = paused
        self.turn()

    @rule()
    def requeue_all(self) -> None:
        expected = 0
        for job in sorted(self.model.jobs.values(), key=lambda job: job.seq):
            if job.state == "dead" and (job.key is None or self.model.key_holder(job.key) is None):
                expected += 1
                job.attempts = job.crashes = 0
                job.expires, job.expires_wall, job.cancel_asked = None, 0.0, False
                self.model.back(job, 0.0, self.mono, self.wall)
        assert self.state.requeue(None, self.now) == expected
        self.turn()

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        ref = self.draw_ref(data, "neither")
        job = self.model.jobs.get(ref.job_id)
        is_dead = job is not None and job.state == "dead"
        assert self.state.purge(ref.job_id, self.now) == int(is_dead)
        if is_dead:
            del self.model.jobs[ref.job_id]
        self.turn()

    @rule(data=st.data())
    def requeue_one(self, data: st.DataObject) -> None:
        ref = self.draw_ref(data, "neither")
        job = self.model.jobs.get(ref.job_id)
        try:
            requeued = self.state.requeue(ref.job_id, self.now)
        except ConflictError:
            assert job is not None
            assert job.key is not None
            assert self.model.key_holder(job.key) is not None
        else:
            assert requeued == int(job is not None and job.state == "dead")
            if requeued and job is not None:
                job.attempts = job.crashes = 0
                job.expires, job.expires_wall, job.cancel_asked = None, 0.0, False
                self.model.back(job, 0.0, self.mono, self.wall)
        self.turn()

    # time, clocks, crashes

    @rule(seconds=jumps)
    def time_passes(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds
        self.turn()

    @rule(hours=st.sampled_from([-3.0, -1.0, 1.0, 5.0]))
    def wall_clock_steps(self, hours: float) -> None:
        self.wall += hours * 3600
        self.turn()

    @rule()
    def commit(self) -> None:
        for batch in self.uncommitted:
            self.medium.write(batch)
        self.uncommitted = []
        self.kept = self.model.commit()
        self.kept_fence = self.highest_fence

    @rule(commits=st.booleans(), down=st.sampled_from([0.0, 2.0, 30.0]))
    def owner_is_killed(self, commits: bool, down: float) -> None:
        if commits:
            self.commit()
        self.uncommitted = []
        self.parked = {}
        self.highest_fence = max(self.kept_fence, self.told_fence)  # nobody was told of the others
        self.mono += down
        self.wall += down
        self.model = copy.deepcopy(self.kept)
        self.model.restart(self.mono, self.wall)
        self.state = QueueState(self.settings)
        self.state.load_notes(self.medium.notes_by_name, self.now)
        rows = [Row(seq, head, body) for seq, (head, body) in sorted(self.medium.rows_by_seq.items())]
        self.state.load_rows(rows, self.now)
        self.state.loaded(self.now)
        self.turn()

    # what always holds

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        for job in self.model.jobs.values():
            held = self.state.job(job.id)
            assert held is not None, f"{job.id} is lost"
            assert COUNT_NAMES[held.state] == job.state
            assert (held.attempts, held.crashes, held.fence) == (job.attempts, job.crashes, job.fence)
            assert held.result == job.result
            assert (held.holder.id if held.holder else None) == job.worker
            if job.error is not None:
                assert held.last_error is not None
                assert held.last_error.startswith(job.error)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        expected = dict.fromkeys(COUNT_NAMES, 0)
        for job in self.model.jobs.values():
            expected[job.state] += 1
        assert dict(self.state.stats(self.now).counts) == expected
        assert [job.id for job in self.state.dead_jobs()] == [
            job.id for job in sorted(self.model.jobs.values(), key=lambda job: job.seq) if job.state == "dead"
        ]

    @invariant()
    def nobody_waits_beside_a_ready_job(self) -> None:
        if not hasattr(self, "model") or self.model.paused:
            return
        for request, _ in self.parked.values():
            known = self.model.workers.get(request.worker) if request.worker else None
            if known is None or known.up or not known.tokened:
                assert not self.model.ready(request.tasks)

    @invariant()
    def everything_held_ends(self) -> None:
        if not hasattr(self, "model"):
            return
        due = self.state.next_due()
        assert due is None or self.state.due_at <= due > self.mono - 1.5

    # helpers

    def draw_ref(self, data: st.DataObject, what: str) -> JobRef:
        if not self.seen:
            return JobRef("nobody", 1, 1)
        chosen = data.draw(st.sampled_from(self.seen[-12:]))
        current = self.model.jobs.get(chosen.job_id)
        if current is not None and chosen.fence is None:
            chosen = JobRef(current.id, current.attempts, current.fence)
        return JobRef(
            chosen.job_id,
            chosen.attempt if what in ("attempt", "both") else None,
            chosen.fence if what in ("fence", "both") else None,
        )

    def is_current(self, job: ModelJob, ref: JobRef) -> bool:
        if ref.fence is not None:
            return job.fence == ref.fence
        return ref.attempt is None or job.attempts == ref.attempt

    def held_by(self, ref: JobRef) -> ModelJob | None:
        job = self.model.jobs.get(ref.job_id)
        return job if job is not None and job.state == "leased" and self.is_current(job, ref) else None


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
