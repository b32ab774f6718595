"""The verbs that bring jobs: enqueue, enqueue_many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.queue.alike import NewBatch
from istos_worker.queue.limits import MAX_ATTEMPTS, MAX_DELAY_S, MAX_KEY, MAX_PRIORITY
from istos_worker.queue.records import Instant, NewJob
from istos_worker.queue.role_values import check_size, checked_wf, from_base64, text_param
from istos_worker.wire.bundle import BASE64, ENCODINGS, SIZED, cut, split_head
from istos_worker.wire.codec import decode_json, int_param, seconds_param
from istos_worker.wire.envelope import decode_envelope

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.verbs import Call, Reply


_DESCRIBING = frozenset(("priority", "delay", "max_attempts", "expires", "unique_key", "schedule", "tick"))


def enqueue(call: Call, state: QueueState, now: Instant) -> Reply:
    job = _described(call, call.query.payload)
    wf = call.params.get("wf")
    if wf is not None:
        job.wf = checked_wf(wf, call.limits)
    job.job_id = call.params.get("job_id")
    done = state.enqueue(job, now)
    return {"job_id": done.job_id, "duplicate": True} if done.duplicate else {"job_id": done.job_id}


def _described(call: Call, body: bytes) -> NewJob:
    """The job as parameters and attachment tell it, without id and workflow."""
    job = NewJob(body=body)
    params = call.params
    if not _DESCRIBING.isdisjoint(params):
        job.priority = int_param(params, "priority", 0, low=-MAX_PRIORITY, high=MAX_PRIORITY)
        job.delay_s = seconds_param(params, "delay", 0.0, high=MAX_DELAY_S)
        if "max_attempts" in params:
            job.max_attempts = int_param(params, "max_attempts", 1, low=1, high=MAX_ATTEMPTS)
        if "expires" in params:
            job.expires_s = seconds_param(params, "expires", 0.0, high=MAX_DELAY_S)
        job.unique_key = text_param(params, "unique_key", MAX_KEY)
        job.schedule = text_param(params, "schedule", MAX_KEY)
        job.tick = text_param(params, "tick", MAX_KEY)
    if (job.schedule is None) != (job.tick is None):
        raise BadRequestError("schedule and tick go together")
    if call.query.attachment is not None:
        envelope = decode_envelope(call.query.attachment)
        job.correlation_id = envelope.correlation_id
        job.traceparent = envelope.traceparent
    return job


def enqueue_many(call: Call, state: QueueState, now: Instant) -> Reply:
    bodies, wfs = _members(call)
    like = _described(call, b"")
    batch = NewBatch(like=like, bodies=bodies, wfs=wfs, base_id=call.params.get("job_id"))
    done = state.enqueue_alike(batch, now)
    reply: dict[str, Any] = {"job_ids": done.job_ids}
    if done.duplicates:
        reply["duplicates"] = done.duplicates
    return reply


def _members(call: Call) -> tuple[list[bytes], Sequence[str | None] | None]:
    payload = call.query.payload
    check_size(len(payload), call.limits.batch_bytes, "the batch")
    head, rest = split_head(payload) if call.params.get("encoding") == SIZED else (payload, b"")
    listed = decode_json(head, "the batch")
    wfs: Sequence[str | None] | None = None
    if isinstance(listed, dict):
        wfs = listed.get("wfs")
        listed = listed.get("bodies")
    if not isinstance(listed, list):
        raise BadRequestError("enqueue_many takes a JSON array of bodies")
    if len(listed) > call.limits.batch:
        raise PayloadTooLargeError(f"a batch takes at most {call.limits.batch} jobs, got {len(listed)}")
    bodies = _bodies(call, listed, rest)
    if wfs is None:
        return bodies, None
    if not isinstance(wfs, list) or len(wfs) != len(bodies):
        raise BadRequestError("wfs must have one entry for each body")
    if not all(wf is None or isinstance(wf, str) for wf in wfs):
        raise BadRequestError("each of wfs must be text or null")
    return bodies, [None if wf is None else checked_wf(wf, call.limits) for wf in wfs]


def _bodies(call: Call, listed: list[Any], rest: bytes) -> list[bytes]:
    encoding = call.params.get("encoding")
    if encoding == SIZED:
        return cut(rest, listed)
    if encoding == BASE64:
        return [from_base64(text, "a body") for text in listed]
    if encoding is not None:
        known = " or ".join(ENCODINGS)
        raise BadRequestError(f"encoding must be {known} or absent, got {encoding[:40]!r}")
    # orjson would round numbers beyond 64 bits; the standard library gives every number back as it was.
    try:
        raw = json.loads(call.query.payload)
        members = raw["bodies"] if isinstance(raw, dict) else raw
        return [json.dumps(body, separators=(",", ":")).encode() for body in members]
    except (ValueError, RecursionError) as broken:
        raise BadRequestError(f"the batch cannot be read: {broken}") from broken
