"""The verbs that bring jobs: enqueue, enqueue_many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.queue.limits import MAX_ATTEMPTS, MAX_DELAY_S, MAX_KEY, MAX_PRIORITY
from istos_worker.queue.records import Instant, NewJob
from istos_worker.queue.role_values import check_size, checked_wf, from_base64, text_param
from istos_worker.wire.codec import decode_json, int_param, seconds_param
from istos_worker.wire.envelope import decode_envelope

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.verbs import Call, Reply


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
    if params:
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
    base = call.params.get("job_id")
    alike = _described(call, b"")
    jobs = [
        NewJob(
            body=body,
            job_id=None if base is None else f"{base}.{index}",
            wf=None if wf is None else checked_wf(wf, call.limits),
            priority=alike.priority,
            delay_s=alike.delay_s,
            max_attempts=alike.max_attempts,
            expires_s=alike.expires_s,
            unique_key=alike.unique_key,
            schedule=alike.schedule,
            tick=alike.tick,
            correlation_id=alike.correlation_id,
            traceparent=alike.traceparent,
        )
        for index, (body, wf) in enumerate(zip(bodies, wfs, strict=True))
    ]
    done = state.enqueue_many(jobs, now)
    duplicates = sum(one.duplicate for one in done)
    reply: dict[str, Any] = {"job_ids": [one.job_id for one in done]}
    if duplicates:
        reply["duplicates"] = duplicates
    return reply


def _members(call: Call) -> tuple[list[bytes], Sequence[str | None]]:
    payload = call.query.payload
    check_size(len(payload), call.limits.batch_bytes, "the batch")
    listed = decode_json(payload, "the batch")
    wfs: Sequence[str | None] | None = None
    if isinstance(listed, dict):
        wfs = listed.get("wfs")
        listed = listed.get("bodies")
    if not isinstance(listed, list):
        raise BadRequestError("enqueue_many takes a JSON array of bodies")
    if len(listed) > call.limits.batch:
        raise PayloadTooLargeError(f"a batch takes at most {call.limits.batch} jobs, got {len(listed)}")
    bodies = _bodies(call, listed)
    if wfs is None:
        return bodies, [None] * len(bodies)
    if not isinstance(wfs, list) or len(wfs) != len(bodies):
        raise BadRequestError("wfs must have one entry for each body")
    if not all(wf is None or isinstance(wf, str) for wf in wfs):
        raise BadRequestError("each of wfs must be text or null")
    return bodies, wfs


def _bodies(call: Call, listed: list[Any]) -> list[bytes]:
    encoding = call.params.get("encoding")
    if encoding == "base64":
        return [from_base64(text, "a body") for text in listed]
    if encoding is not None:
        raise BadRequestError(f"encoding must be base64 or absent, got {encoding[:40]!r}")
    # orjson would round numbers beyond 64 bits; the standard library gives every number back as it was.
    try:
        raw = json.loads(call.query.payload)
        members = raw["bodies"] if isinstance(raw, dict) else raw
        return [json.dumps(body, separators=(",", ":")).encode() for body in members]
    except (ValueError, RecursionError) as broken:
        raise BadRequestError(f"the batch cannot be read: {broken}") from broken
