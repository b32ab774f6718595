"""The queue as a naive dictionary: every rule by a scan over everything. What QueueState is compared with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

GRACE_S = 5.0
RANDOM_TTL_S = 600.0


@dataclass
class ModelJob:
    id: str
    seq: int
    priority: int
    task: str
    max_attempts: int
    state: str = "ready"
    attempts: int = 0
    crashes: int = 0
    fence: int = 0
    worker: str | None = None
    due: float | None = None
    due_wall: float = 0.0
    lease_due: float | None = None
    lease_until: float = 0.0
    expires: float | None = None
    expires_wall: float = 0.0
    forget: float | None = None
    completed_wall: float = 0.0
    key: str | None = None
    cancel_asked: bool = False
    error: str | None = None
    result: bytes | None = None
    kept_tokened: bool = False
    kept_lease_until: float = 0.0


@dataclass
class ModelWorker:
    up: bool = False
    tokened: bool = False
    grace: float | None = None
    seq: int | None = None
    granted: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Tomb:
    fence: int
    due: float
    ttl: float
    wall: float


@dataclass
class Model:
    keep_results: bool
    lease_s: float
    ttl_s: float
    crash_budget: int
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    tombs: dict[str, Tomb] = field(default_factory=dict)
    workers: dict[str, ModelWorker] = field(default_factory=dict)
    buried: set[str] = field(default_factory=set)
    paused: bool = False
    dirty: set[str] = field(default_factory=set)

    # looking

    def ready(self, tasks: frozenset[str] | None) -> list[ModelJob]:
        found = [
            job for job in self.jobs.values() if job.state == "ready" and (tasks is None or job.task in tasks)
        ]
        return sorted(found, key=lambda job: (-job.priority, job.seq))

    def held(self, worker: str | None) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == "leased" and job.worker == worker]

    def worker(self, name: str) -> ModelWorker:
        return self.workers.setdefault(name, ModelWorker())

    def key_holder(self, key: str) -> ModelJob | None:
        live = ("ready", "delayed", "leased")
        return next((job for job in self.jobs.values() if job.key == key and job.state in live), None)

    # changes

    def lease(self, job: ModelJob, worker: str | None, fence: int, mono: float, wall: float) -> None:
        job.state = "leased"
        job.expires = None
        job.attempts += 1
        job.fence = fence
        job.worker = worker
        job.lease_until = wall + self.lease_s
        job.lease_due = None
        if worker is None or not self.worker(worker).tokened:
            job.lease_due = mono + self.lease_s
        self.dirty.add(job.id)

    def sign_of_life(self, worker: str, seconds: float, mono: float) -> None:
        holder = self.worker(worker)
        if holder.tokened and not holder.up:
            holder.grace = max(mono + seconds, holder.grace or 0.0)

    def drop(self, job: ModelJob) -> None:
        job.worker = None
        job.lease_due = None
        job.lease_until = 0.0
        self.dirty.add(job.id)

    def finish(self, job: ModelJob, result: bytes | None, mono: float, wall: float) -> None:
        self.drop(job)
        if self.keep_results:
            job.state, job.result = "done", result
            job.completed_wall = wall
            job.forget = mono + self.ttl_s
            return
        del self.jobs[job.id]
        ttl = RANDOM_TTL_S if len(job.id) == 32 else self.ttl_s
        self.tombs[job.id] = Tomb(job.fence, mono + ttl, ttl, wall)

    def cancel(self, job: ModelJob, mono: float, wall: float) -> None:
        self.drop(job)
        job.state = "cancelled"
        job.cancel_asked = False
        job.completed_wall = wall
        job.forget = mono + self.ttl_s

    def die(self, job: ModelJob, error: str | None) -> None:
        self.drop(job)
        job.state = "dead"
        job.due = None
        if error is not None:
            job.error = error

    def back(self, job: ModelJob, delay: float, mono: float, wall: float) -> None:
        self.drop(job)
        if delay > 0:
            job.state, job.due, job.due_wall = "delayed", mono + delay, wall + delay
        else:
            job.state, job.due = "ready", None

    def failed(self, job: ModelJob, error: str | None, delay: float, mono: float, wall: float) -> str:
        if job.cancel_asked:
            self.cancel(job, mono, wall)
            return "cancelled"
        if job.attempts - job.crashes >= job.max_attempts:
            self.die(job, error)
            return "dead"
        job.error = error
        self.back(job, delay, mono, wall)
        return "requeued"

    def crashed(self, job: ModelJob, mono: float, wall: float) -> None:
        job.crashes += 1
        if job.cancel_asked:
            self.cancel(job, mono, wall)
        elif job.crashes >= self.crash_budget:
            self.die(job, "worker lost")
        else:
            job.error = "worker lost"
            self.back(job, 0.0, mono, wall)

    def give_back(self, job: ModelJob, delay: float, mono: float, wall: float) -> None:
        job.attempts -= 1
        if job.cancel_asked:
            self.cancel(job, mono, wall)
            return
        if job.expires_wall and not job.attempts:
            job.expires = mono + max(0.0, job.expires_wall - wall)
        self.back(job, delay, mono, wall)

    # time

    def tick(self, mono: float, wall: float) -> set[str]:
        """Returns the workers that were given up."""
        for job in list(self.jobs.values()):
            if job.state == "leased" and job.lease_due is not None and job.lease_due <= mono:
                self.failed(job, "lease expired", 0.0, mono, wall)
        given_up = set()
        for name, worker in self.workers.items():
            if worker.grace is not None and worker.grace <= mono:
                worker.grace = None
                given_up.add(name)
                for job in self.held(name):
                    self.crashed(job, mono, wall)
        for job in list(self.jobs.values()):
            if job.state == "delayed" and job.due is not None and job.due <= mono:
                job.state, job.due = "ready", None
                self.dirty.add(job.id)
            if job.state in ("ready", "delayed") and job.expires is not None and job.expires <= mono:
                job.expires = None
                self.die(job, "expired")
            if job.state in ("done", "cancelled") and job.forget is not None and job.forget <= mono:
                del self.jobs[job.id]
        for job_id, tomb in list(self.tombs.items()):
            if tomb.due <= mono:
                del self.tombs[job_id]
        return given_up

    # the medium

    def commit(self) -> Model:
        """What a crash from now on leaves."""
        for job_id in self.dirty:
            job = self.jobs.get(job_id)
            if job is not None:
                job.kept_tokened = job.worker is not None and self.worker(job.worker).tokened
                job.kept_lease_until = job.lease_until
        self.dirty = set()
        return copy.deepcopy(self)

    def restart(self, mono: float, wall: float) -> None:
        self.workers, self.buried, self.dirty = {}, set(), set()
        for job in self.jobs.values():
            self._restart_job(job, mono, wall)
        for tomb in self.tombs.values():
            tomb.due = mono + min(tomb.ttl, max(0.0, tomb.wall + tomb.ttl - wall))

    def _restart_job(self, job: ModelJob, mono: float, wall: float) -> None:
        if job.state == "delayed":
            job.due = mono + max(0.0, job.due_wall - wall)
        if job.state in ("done", "cancelled"):
            job.forget = mono + min(self.ttl_s, max(0.0, job.completed_wall + self.ttl_s - wall))
        if job.state in ("ready", "delayed") and job.expires_wall and not job.attempts:
            job.expires = mono + max(0.0, job.expires_wall - wall)
        if job.state != "leased":
            return
        if job.worker is None or not job.kept_tokened:
            job.lease_until = job.kept_lease_until
            job.lease_due = mono + min(self.lease_s, max(min(self.lease_s, GRACE_S), job.lease_until - wall))
        if job.worker is not None and job.kept_tokened:
            job.lease_due = None
            holder = self.worker(job.worker)
            holder.tokened = True
            holder.grace = mono + min(self.lease_s, GRACE_S)
