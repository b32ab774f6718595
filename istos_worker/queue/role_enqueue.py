"""The verbs that bring jobs: enqueue, enqueue_many."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.queue.records import Instant, NewJob
from istos_worker.queue.role_values import check_job_id, check_size, checked_wf, from_base64, text_param
from istos_worker.wire.codec import decode_json, int_param, seconds_param
from istos_worker.wire.envelope import decode_envelope
from istos_worker.wire.limits import MAX_ATTEMPTS, MAX_KEY, MAX_NAME, MAX_PRIORITY, Limits

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.verbs import Call, Reply


def enqueue(call: Call, state: QueueState, now: Instant) -> Reply:
    body = call.query.payload
    check_size(len(body), call.limits.payload_bytes, "the job's body")
    job_id = call.params.get("job_id")
    if job_id is not None:
        check_job_id(job_id)
    job = _new_job(call, body, job_id, call.params.get("wf"))
    done = state.enqueue(job, now)
    return {"job_id": done.job_id, "duplicate": True} if done.duplicate else {"job_id": done.job_id}


def _new_job(call: Call, body: bytes, job_id: str | None, wf: str | None) -> NewJob:
    job = NewJob(body=body, job_id=job_id)
    if wf is not None:
        job.wf = checked_wf(wf, call.limits)
    if call.params:
        _read_job_params(job, call.params, call.limits)
    if call.query.attachment is not None:
        envelope = decode_envelope(call.query.attachment)
        job.correlation_id = envelope.correlation_id
        job.traceparent = envelope.traceparent
    return job


def _read_job_params(job: NewJob, params: Mapping[str, str], limits: Limits) -> None:
    job.priority = int_param(params, "priority", 0, low=-MAX_PRIORITY, high=MAX_PRIORITY)
    job.delay_s = seconds_param(params, "delay", 0.0, high=limits.delay_s)
    if "max_attempts" in params:
        job.max_attempts = int_param(params, "max_attempts", 1, low=1, high=MAX_ATTEMPTS)
    if "expires" in params:
        job.expires_s = seconds_param(params, "expires", 0.0, high=limits.delay_s)
    job.unique_key = text_param(params, "unique_key", MAX_KEY)
    job.schedule = text_param(params, "schedule", MAX_KEY)
    job.tick = text_param(params, "tick", MAX_NAME)
    if (job.schedule is None) != (job.tick is None):
        raise BadRequestError("schedule and tick go together")


def enqueue_many(call: Call, state: QueueState, now: Instant) -> Reply:
    bodies, wfs = _members(call)
    base = call.params.get("job_id")
    if base is not None:
        check_job_id(f"{base}.{max(len(bodies) - 1, 0)}")
    jobs = [
        _new_job(call, body, None if base is None else f"{base}.{index}", wf)
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
    for body in bodies:
        check_size(len(body), call.limits.payload_bytes, "a job's body")
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
