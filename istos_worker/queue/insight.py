"""What the queue says about itself when asked. Reads everything, changes nothing."""

from __future__ import annotations

from dataclasses import asdict

from istos_worker.queue.claims import Claims
from istos_worker.queue.leases import Leases
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.ready import PLAIN
from istos_worker.queue.records import (
    CANCELLED,
    COUNT_NAMES,
    DELAYED,
    DONE,
    LEASED,
    Instant,
    Job,
    Stats,
    Why,
    WorkerInfo,
)
from istos_worker.queue.workflows import Workflows, decode_workflow


class Insight:
    __slots__ = ("_claims", "_leases", "_ledger", "_workflows")

    def __init__(self, ledger: Ledger, leases: Leases, claims: Claims, workflows: Workflows) -> None:
        self._ledger = ledger
        self._leases = leases
        self._claims = claims
        self._workflows = workflows

    def stats(self, now: Instant) -> Stats:
        ledger = self._ledger
        oldest = ledger.ready.oldest()
        return Stats(
            counts=dict(zip(COUNT_NAMES, ledger.counts, strict=True)),
            paused=ledger.paused,
            workers=sum(not holder.is_idle for holder in self._leases.holders.by_id.values()),
            oldest_ready_s=None if oldest is None else max(0.0, now.wall - oldest.enqueued_at),
            totals=asdict(ledger.totals),
        )

    def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(holder.id, len(holder.held), holder.up)
            for holder in self._leases.holders.by_id.values()
            if not holder.is_idle
        ]

    def why(self, job_id: str, now: Instant) -> Why:
        job = self._ledger.by_id.get(job_id)
        if job is None:
            return self._why_absent(job_id)
        return Why(job.public_state.value, self._sentence(job, now))

    def _sentence(self, job: Job, now: Instant) -> str:
        if job.state == LEASED:
            return self._why_leased(job, now)
        if job.state == DELAYED:
            after = f" after: {_line(job.last_error)}" if job.last_error else ""
            return f"waits {max(0.0, job.not_before - now.wall):.1f} s more before it may start{after}"
        if job.state == DONE:
            return "is done" + self._why_still_waits_for(job)
        if job.state == CANCELLED:
            return "was cancelled"
        if job.public_state == "dead":
            return self._why_dead(job)
        return self._why_ready(job)

    def _why_dead(self, job: Job) -> str:
        holder = None if job.unique_key is None else self._ledger.by_key.get(job.unique_key)
        key = "" if holder is None else f"; its unique key is held by job {holder.id}"
        tried = f"{job.attempts} of {job.max_attempts} attempts"
        return f"is a dead letter after {tried}: {_line(job.last_error)}{key}"

    def _why_ready(self, job: Job) -> str:
        ledger = self._ledger
        if ledger.paused:
            return "is ready, but the queue is paused"
        name = job.task or PLAIN
        askers = [holder for holder in self._leases.holders.by_id.values() if not holder.is_idle]
        if askers and not any(holder.tasks is None or name in holder.tasks for holder in askers):
            return (
                f"is ready, but no worker here has the task {name!r}"
                if job.task
                else ("is ready, but no worker here takes bodies that are no task call")
            )
        if not askers and not self._claims.parked:
            return "is ready, but no worker of this queue is known"
        return f"is ready and waits for a free worker; {ledger.counts[0] - 1} other jobs are ready"

    def _why_leased(self, job: Job, now: Instant) -> str:
        holder = job.holder
        asked = ", and its holder has been asked to cancel it" if job.cancel_asked else ""
        since_s = max(0.0, now.wall - job.lease_until + self._ledger.settings.lease_s)
        since = f", claimed or renewed {since_s:.1f} s ago"
        if holder is None:
            return f"runs on attempt {job.attempts}, held by a worker that gave no name{since}{asked}"
        missing = ", which is missing; it has a short grace to come back" if holder.is_missing else ""
        return f"runs on attempt {job.attempts}, held by worker {holder.id}{since}{missing}{asked}"

    def _why_still_waits_for(self, job: Job) -> str:
        workflow = decode_workflow(job.wf)
        if workflow is None or workflow.chord is None:
            return ""
        barrier = self._workflows.barriers.get(workflow.chord.id)
        if barrier is None or barrier.is_closed:
            return ""
        return f"; its chord waits for {_members(barrier.missing)} of {barrier.size}"

    def _why_absent(self, job_id: str) -> Why:
        if job_id.endswith(".cb"):
            barrier = self._workflows.barriers.get(job_id.removesuffix(".cb"))
            if barrier is not None and not barrier.is_closed:
                return Why("unknown", f"waits for chord {_members(barrier.missing)} of {barrier.size}")
            if barrier is not None and barrier.rows:
                return Why(
                    "unknown",
                    f"all {barrier.size} members of its chord are done; the worker of member {barrier.closed_by} is"
                    " to enqueue it",
                )
        if job_id in self._ledger.tombs:
            return Why("unknown", "is finished, and its result was not kept")
        return Why("unknown", "is not known here: it never was, or its record has aged out")


def _members(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:10])
    more = f" and {len(indexes) - 10} more" if len(indexes) > 10 else ""
    return f"member{'s' if len(indexes) > 1 else ''} {shown}{more}"


def _line(text: str | None) -> str:
    return (text or "no reason given").strip().splitlines()[0][:200]
