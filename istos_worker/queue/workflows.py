"""What follows a job: the next step of its chain, the callback of its chord. Knows `wf`; not storage.

Everything here happens in the turn of the ack that causes it, under an id derived from the parent, so that any
crash leaves exactly one continuation (CONTRACT.md section 4, rule 10).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from istos_worker.queue.barriers import Barrier, Barriers
from istos_worker.queue.heads import FORMAT, OUTGOING
from istos_worker.queue.intake import Intake
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import derived_id
from istos_worker.queue.records import Instant, InvalidChordError, Job, NewJob, Outgoing

OnFailure = Literal["wait", "fail", "collect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    prefix: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChordPart:
    """A job's place in a chord."""

    id: str
    index: int
    size: int
    callback: Callback
    on_failure: OnFailure = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """`chain`: the prefixes still to come."""

    chain: tuple[str, ...] = ()
    chord: ChordPart | None = None


def decode_workflow(wf: str | None) -> Workflow | None:
    """What a job's `wf` says; None when it says nothing that can be read: it belongs to its producer."""
    if not wf:
        return None
    try:
        named = orjson.loads(base64.b64decode(wf, validate=True))
        chain = tuple(str(step["prefix"]) for step in named.get("chain") or ())
        return Workflow(chain=chain, chord=_decode_chord(named.get("chord")))
    except (binascii.Error, ValueError, TypeError, KeyError, AttributeError):
        return None


def _decode_chord(named: Any) -> ChordPart | None:
    if not named:
        return None
    policy = named.get("on_failure")
    return ChordPart(
        id=str(named["id"]),
        index=int(named["index"]),
        size=int(named["size"]),
        callback=Callback(
            prefix=str(named["callback"]["prefix"]), data=base64.b64decode(named["callback"]["data"])
        ),
        on_failure=policy if policy in ("fail", "collect") else "wait",
    )


def encode_chain(prefixes: tuple[str, ...]) -> str | None:
    if not prefixes:
        return None
    return base64.b64encode(orjson.dumps({"chain": [{"prefix": prefix} for prefix in prefixes]})).decode()


class Workflows:
    __slots__ = ("_intake", "_ledger", "barriers")

    def __init__(self, ledger: Ledger, intake: Intake) -> None:
        self._ledger = ledger
        self._intake = intake
        self.barriers = Barriers(
            ledger.put_row, ledger.drop_row, ledger.horizon, ttl_s=ledger.settings.result_ttl_s
        )

    def advance(self, job: Job, result: bytes | None, now: Instant) -> None:
        """The job is done and its holder left what follows to us."""
        workflow = decode_workflow(job.wf)
        if workflow is None:
            return
        if workflow.chain:
            self._continue(
                workflow.chain[0],
                NewJob(
                    body=result or b"null",
                    job_id=derived_id(job.id, ".next"),
                    priority=job.priority,
                    wf=encode_chain(workflow.chain[1:]),
                    correlation_id=job.correlation_id,
                    traceparent=job.traceparent,
                ),
                now,
            )
        if workflow.chord is not None:
            self._member_done(job, workflow.chord, result, now)

    def _member_done(self, job: Job, part: ChordPart, result: bytes | None, now: Instant) -> None:
        try:
            barrier = self.barriers.ensure(part.id, part.index, part.size)
        except InvalidChordError:
            return  # a producer's mistake must not keep the member from being done
        completes = self.barriers.report(barrier, part.index, result)
        handed_over = barrier.closed_by == part.index and bool(barrier.rows)
        if completes or handed_over:
            self._call_back(job, part, barrier, now)

    def _call_back(self, job: Job, part: ChordPart, barrier: Barrier, now: Instant) -> None:
        self._continue(
            part.callback.prefix,
            NewJob(
                body=barrier.body(part.callback.data),
                job_id=derived_id(part.id, ".cb"),
                priority=job.priority,
                correlation_id=job.correlation_id,
                traceparent=job.traceparent,
            ),
            now,
        )
        self.barriers.close(barrier, part.index, now, keep_results=False)

    def settled(self, job: Job, now: Instant) -> None:
        """The job is done and its holder, a peer, has seen to what follows."""
        workflow = decode_workflow(job.wf)
        if workflow is None or workflow.chord is None:
            return
        barrier = self.barriers.get(workflow.chord.id)
        if barrier is not None and barrier.closed_by == workflow.chord.index:
            self.barriers.clear(barrier, now)

    def failed(self, job: Job, reason: str, now: Instant) -> Callback | None:
        """A member will not finish. Returns the callback that fails with it, if there is one."""
        workflow = decode_workflow(job.wf)
        if workflow is None or workflow.chord is None or workflow.chord.on_failure == "wait":
            return None
        part = workflow.chord
        try:
            barrier = self.barriers.ensure(part.id, part.index, part.size)
        except InvalidChordError:
            return None
        if barrier.is_closed:
            return None
        if part.on_failure == "collect":
            error = orjson.dumps({"error": reason, "job_id": job.id})
            if self.barriers.report(barrier, part.index, error):
                self._call_back(job, part, barrier, now)
            return None
        callback = Callback(prefix=part.callback.prefix, data=barrier.body(part.callback.data))
        self.barriers.close(barrier, part.index, now, keep_results=False)
        return callback

    def report(
        self, chord_id: str, index: int, size: int, result_b64: str | None, now: Instant
    ) -> list[str | None] | None:
        """A peer's worker says that a member is done. The results, for the member that completes the barrier."""
        barrier = self.barriers.ensure(chord_id, index, size)
        if self.barriers.report(barrier, index, result_b64):
            self.barriers.close(barrier, index, now, keep_results=True)
        elif barrier.closed_by != index or not barrier.rows:
            return None
        return barrier.texts()

    def is_own(self, prefix: str) -> bool:
        return prefix.strip("/") == self._ledger.settings.prefix.strip("/")

    def _continue(self, prefix: str, new: NewJob, now: Instant) -> None:
        if self.is_own(prefix):
            self._intake.continuation(new, now)
        else:
            self.post(prefix, new)

    def post(self, prefix: str, new: NewJob) -> None:
        """For another queue: noted, and sent until its owner has it."""
        fields = (
            FORMAT,
            OUTGOING,
            prefix,
            new.job_id,
            new.priority,
            new.wf,
            new.correlation_id,
            new.traceparent,
        )
        seq = self._ledger.put_row(orjson.dumps(fields), new.body)
        self._ledger.send(Outgoing(note_id=seq, prefix=prefix, job=new))

    def load_outgoing(self, fields: list[Any], seq: int, body: bytes) -> None:
        _, _, prefix, job_id, priority, wf, correlation_id, traceparent = fields
        new = NewJob(
            body=body,
            job_id=job_id,
            priority=priority,
            wf=wf,
            correlation_id=correlation_id,
            traceparent=traceparent,
        )
        self._ledger.send(Outgoing(note_id=seq, prefix=prefix, job=new))

    def sent(self, note_id: int) -> None:
        if self._ledger.unsent.pop(note_id, None) is not None:
            self._ledger.drop_row(note_id)
