"""The verbs of a worker: claim, ack, nack, release, extend, settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from istos_worker.errors import BadRequestError, IstosError, PayloadTooLargeError
from istos_worker.queue.limits import MAX_DELAY_S, MAX_KEY, MAX_TASKS_BYTES
from istos_worker.queue.outcomes import OK
from istos_worker.queue.records import ClaimRequest, Delivery, Instant, JobRef, Outcome, Parked
from istos_worker.queue.role_values import (
    JOB_ID,
    MAX_INT,
    check_size,
    from_base64,
    number,
    optional_seconds,
    text_param,
    to_base64,
)
from istos_worker.wire.codec import decode_json, decode_tasks, flag_param, int_param, seconds_param
from istos_worker.wire.limits import Limits

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.verbs import Call, Reply


def claim(call: Call, state: QueueState, now: Instant) -> Reply | None:
    if not call.params:  # as peer 0.3 asks
        jobs = state.claim(ClaimRequest(), now)
        return _empty_reply if isinstance(jobs, Parked) or not jobs else delivery_object(jobs[0])
    request = _claim_request(call)
    shape = _jobs_shape(state) if "n" in call.params else _one_job_reply
    if request.wait_s > 0:
        request.waiter = call.parked_as(shape)
    answer = state.claim(request, now)
    return None if isinstance(answer, Parked) else shape(answer)


def _claim_request(call: Call) -> ClaimRequest:
    params = call.params
    worker = text_param(params, "worker", MAX_KEY)
    if worker is not None and not JOB_ID.fullmatch(worker):
        raise BadRequestError("worker must be 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    check_size(len(params.get("tasks", "")), MAX_TASKS_BYTES, "tasks")
    wait_s = seconds_param(params, "wait", 0.0, high=86400.0)
    return ClaimRequest(
        n=int_param(params, "n", 1, low=0, high=call.limits.batch),
        worker=worker,
        seq=int_param(params, "seq", 0, low=0, high=MAX_INT) if "seq" in params else None,
        tasks=decode_tasks(params.get("tasks")),
        wait_s=min(wait_s, call.limits.wait_s),
    )


_empty_reply: Reply = {"empty": True}


def _one_job_reply(jobs: Sequence[Delivery]) -> Reply:
    return delivery_object(jobs[0]) if jobs else _empty_reply


def _jobs_shape(state: QueueState) -> Callable[[Sequence[Delivery]], Reply]:
    lease_s = state.settings.lease_s
    return lambda jobs: {"jobs": [delivery_object(one) for one in jobs], "lease_s": lease_s}


def delivery_object(delivery: Delivery) -> dict[str, Any]:
    job = delivery.job
    made: dict[str, Any] = {
        "job_id": job.id,
        "attempt": delivery.attempt,
        "max_attempts": job.max_attempts,
        "last_error": job.last_error,
        "data": to_base64(job.body),
        "wf": job.wf,
        "correlation_id": job.correlation_id,
        "traceparent": job.traceparent,
        "fence": delivery.fence,
    }
    if job.crashes:
        made["crashes"] = job.crashes
    return made


def ack(call: Call, state: QueueState, now: Instant) -> Reply:
    result = call.query.payload or None
    advance = flag_param(call.params, "advance")
    return _outcome_reply(state.ack(job_ref(call.params), now, result=result, advance=advance))


def nack(call: Call, state: QueueState, now: Instant) -> Reply:
    params = call.params
    outcome = state.nack(
        job_ref(params),
        now,
        error=call.query.payload.decode("utf-8", "replace") or None,
        retry_after_s=optional_seconds(params, "retry_after", MAX_DELAY_S),
        discard=flag_param(params, "discard"),
    )
    # The disposition is there even when it is null, as peer 0.3 has it.
    return {**_outcome_reply(outcome), "disposition": outcome.disposition}


def release(call: Call, state: QueueState, now: Instant) -> Reply:
    delay_s = seconds_param(call.params, "delay", 0.0, high=MAX_DELAY_S)
    return _outcome_reply(state.release(job_ref(call.params), now, delay_s=delay_s))


_ok_reply: Reply = {"ok": True}


def _outcome_reply(outcome: Outcome) -> Reply:
    if outcome is OK:
        return _ok_reply
    reply: dict[str, Any] = {"ok": outcome.ok}
    if outcome.stale:
        reply["stale"] = True
    return reply


def extend(call: Call, state: QueueState, now: Instant) -> Reply:
    if call.query.payload:
        check_size(len(call.query.payload), call.limits.batch_bytes, "the list of jobs")
        listed = decode_json(call.query.payload, "the list of jobs")
        jobs = listed.get("jobs") if isinstance(listed, dict) else None
        refs = [ref_of(one) for one in objects(jobs, "jobs", call.limits)]
    else:
        refs = [job_ref(call.params)]
    extended = state.extend(refs, now)
    reply: dict[str, Any] = {"ok": not extended.lost}
    if extended.lost and len(refs) == 1:
        reply["stale"] = True
    return {
        **reply,
        "lost": extended.lost,
        "cancelled": extended.cancelled,
        "lease_s": state.settings.lease_s,
    }


def settle(call: Call, state: QueueState, now: Instant) -> Reply | None:
    payload = call.query.payload
    check_size(len(payload), call.limits.batch_bytes, "the outcomes")
    decoded = decode_json(payload, "the outcomes") if payload else {"outcomes": []}
    listed = decoded.get("outcomes") if isinstance(decoded, dict) else None
    steps = [_outcome_step(one) for one in objects(listed, "outcomes", call.limits)]  # all, before any is run
    request = _claim_request(call) if "n" in call.params else None

    outcomes = [_run_step(step, state, now) for step in steps]

    lease_s = state.settings.lease_s

    def shape(jobs: Sequence[Delivery]) -> Reply:
        return {"outcomes": outcomes, "jobs": [delivery_object(one) for one in jobs], "lease_s": lease_s}

    if request is None:
        return shape(())
    if request.wait_s > 0:
        request.waiter = call.parked_as(shape)
    answer = state.claim(request, now)
    return None if isinstance(answer, Parked) else shape(answer)


Step = Callable[["QueueState", Instant], "Reply"]


def _run_step(step: Step, state: QueueState, now: Instant) -> Reply:
    try:
        return step(state, now)
    except IstosError as refused:  # one outcome's trouble is not the others'
        return {"ok": False, "error": refused.code, "message": refused.message}


def _outcome_step(outcome: dict[str, Any]) -> Step:
    ref = ref_of(outcome)
    match outcome.get("verb"):
        case "ack":
            return _ack_step(ref, outcome)
        case "nack":
            return _nack_step(ref, outcome)
        case "release":
            delay_s = number(outcome, "delay", MAX_DELAY_S) or 0.0
            return lambda state, now: _outcome_reply(state.release(ref, now, delay_s=delay_s))
        case "cancelled":
            return lambda state, now: _outcome_reply(state.cancelled(ref, now))
        case other:
            raise BadRequestError(f"an outcome's verb is ack, nack, release or cancelled, got {other!r:.40}")


def _ack_step(ref: JobRef, outcome: dict[str, Any]) -> Step:
    text = outcome.get("result")
    result = None if text is None else from_base64(text, "a result") or None
    advance = outcome.get("advance") is True
    return lambda state, now: _outcome_reply(state.ack(ref, now, result=result, advance=advance))


def _nack_step(ref: JobRef, outcome: dict[str, Any]) -> Step:
    text = outcome.get("error")
    if text is not None and not isinstance(text, str):
        raise BadRequestError("an outcome's error must be text")
    retry_after_s = number(outcome, "retry_after", MAX_DELAY_S)
    discard = outcome.get("discard") is True

    def step(state: QueueState, now: Instant) -> Reply:
        done = state.nack(ref, now, error=text or None, retry_after_s=retry_after_s, discard=discard)
        return {**_outcome_reply(done), "disposition": done.disposition}

    return step


def job_ref(params: Mapping[str, str]) -> JobRef:
    return JobRef(
        text_param(params, "job_id", MAX_KEY) or "",
        int_param(params, "attempt", 0, low=0, high=MAX_INT) if "attempt" in params else None,
        int_param(params, "fence", 0, low=0, high=MAX_INT) if "fence" in params else None,
    )


def ref_of(named: dict[str, Any]) -> JobRef:
    job_id, attempt, fence = named.get("job_id"), named.get("attempt"), named.get("fence")
    if type(job_id) is not str or len(job_id) > MAX_KEY:
        raise BadRequestError(f"job_id must be text of at most {MAX_KEY} characters")
    for count in (attempt, fence):
        if count is not None and (type(count) is not int or not 0 <= count <= MAX_INT):
            raise BadRequestError("attempt and fence must be whole numbers, not negative")
    return JobRef(job_id, attempt, fence)


def objects(listed: object, name: str, limits: Limits) -> list[dict[str, Any]]:
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadRequestError(f"the payload must be a JSON object whose {name!r} is an array of objects")
    if len(listed) > limits.batch:
        raise PayloadTooLargeError(f"at most {limits.batch} {name} at once, got {len(listed)}")
    return listed
