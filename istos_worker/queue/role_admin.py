"""The verbs that look and manage: results, dead letters, chords, figures, cancel, pause, bury."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from istos_worker.errors import BadRequestError
from istos_worker.queue.limits import MAX_KEY
from istos_worker.queue.records import DeadLetter, Instant, InvalidChordError, JobResult, Parked, Waiter
from istos_worker.queue.role_values import MAX_INT, check_size, required, text_param, to_base64
from istos_worker.wire.bundle import ENCODINGS
from istos_worker.wire.codec import decode_json, flag_param, int_param, seconds_param
from istos_worker.wire.keys import VERBS

if TYPE_CHECKING:
    from istos_worker.queue.bulk import BulkDone
    from istos_worker.queue.state import QueueState
    from istos_worker.queue.verbs import Call, Reply

PROTOCOL = 1
_DEAD_PAGE = 1000
_ALL_DEAD = 20_000
"""More would keep everybody else waiting."""


def result(call: Call, state: QueueState, now: Instant) -> Reply | None:
    job_id = text_param(call.params, "job_id", MAX_KEY) or ""
    wait_s = seconds_param(call.params, "wait", 0.0, high=86400.0)
    if wait_s <= 0:
        return result_reply(state.result(job_id, now))
    answer = state.await_result(
        call.parked_as(result_reply), job_id, now, wait_s=min(wait_s, call.limits.wait_s)
    )
    return None if isinstance(answer, Parked) else result_reply(answer)


def result_reply(found: JobResult) -> Reply:
    result = found.result
    encoded = None if result is None else to_base64(result)
    return {"state": found.state, "result": encoded}


def dead(call: Call, state: QueueState, now: Instant) -> Reply:
    after = text_param(call.params, "after", MAX_KEY)
    if "limit" in call.params:
        limit = int_param(call.params, "limit", _DEAD_PAGE, low=1, high=_DEAD_PAGE)
        page = state.dead_letters(limit=limit, after=after)
        return {"jobs": [_dead_object(one) for one in page.jobs], "next": page.next}
    page = state.dead_letters(
        limit=_ALL_DEAD, after=after
    )  # as peer 0.3 asks: all of them, as far as they fit
    jobs = [_dead_object(one) for one in page.jobs]
    return {"jobs": jobs} if page.next is None else {"jobs": jobs, "next": page.next}


def _dead_object(job: DeadLetter) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "attempts": job.attempts,
        "last_error": job.last_error,
        "data": to_base64(job.body),
        "history": list(job.history),
    }


def chord(call: Call, state: QueueState, now: Instant) -> Reply:
    payload = call.query.payload
    check_size(len(payload), call.limits.payload_bytes * 4 // 3 + 4, "the result")
    try:
        result = payload.decode("ascii") or None
    except UnicodeDecodeError as broken:
        raise BadRequestError("the result must be base64") from broken
    chord_id = text_param(call.params, "chord_id", MAX_KEY) or ""
    index = int_param(call.params, "index", 0, low=-MAX_INT, high=MAX_INT)
    size = int_param(call.params, "size", 1, low=-MAX_INT, high=MAX_INT)
    try:
        results = state.report(chord_id, index, size, result, now)
    except InvalidChordError:
        return {"complete": False, "error": "invalid_chord"}  # as peer 0.3 answers
    return {"complete": results is not None, "results": results}


def info(call: Call, state: QueueState, now: Instant) -> Reply:
    from istos_worker import __version__

    settings = state.settings
    reply = {
        "protocol": PROTOCOL,
        "version": __version__,
        "verbs": sorted(VERBS),
        "encodings": ENCODINGS,
        "limits": call.limits.as_dict(),
        "lease_s": settings.lease_s,
        "max_attempts": settings.max_attempts,
    }
    name = call.query.local_name
    return reply if name is None else {**reply, "local": name}


def stats(call: Call, state: QueueState, now: Instant) -> Reply:
    stats = state.stats(now)
    return {
        "counts": dict(stats.counts),
        "paused": stats.paused,
        "workers": stats.workers,
        "oldest_ready_s": stats.oldest_ready_s,
        "totals": dict(stats.totals),
    }


def cancel(call: Call, state: QueueState, now: Instant) -> Reply:
    return state.cancel(required(call.params, "job_id"), now)._asdict()


def pause(call: Call, state: QueueState, now: Instant) -> Reply:
    state.pause(now)
    return {"ok": True, "paused": True}


def resume(call: Call, state: QueueState, now: Instant) -> Reply:
    state.resume(now)
    return {"ok": True, "paused": False}


def requeue(call: Call, state: QueueState, now: Instant) -> Reply | None:
    job_id = _one_or_all(call.params)
    if job_id is not None:
        return {"requeued": state.requeue(job_id, now)}
    return _bulk_reply(call, "requeued", state.requeue_all, now)


def purge(call: Call, state: QueueState, now: Instant) -> Reply | None:
    job_id = _one_or_all(call.params)
    if job_id is not None:
        return {"purged": state.purge(job_id, now)}
    return _bulk_reply(call, "purged", state.purge_all, now)


def _bulk_reply(
    call: Call, name: str, begin: Callable[[Waiter, Instant], BulkDone | Parked], now: Instant
) -> Reply | None:
    def shape(done: BulkDone) -> Reply:
        return {name: done.letters, "more": True} if done.more else {name: done.letters}

    answer = begin(call.parked_as(shape), now)
    return None if isinstance(answer, Parked) else shape(answer)


def _one_or_all(params: Mapping[str, str]) -> str | None:
    """None is all of them, and must have been said."""
    if flag_param(params, "all"):
        return None
    return required(params, "job_id")


def bury(call: Call, state: QueueState, now: Instant) -> Reply:
    running: frozenset[str] | None = None
    if call.query.payload:
        decoded = decode_json(call.query.payload, "the list of running jobs")
        listed = decoded.get("running") if isinstance(decoded, dict) else None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise BadRequestError("the payload must be a JSON object whose 'running' is an array of job ids")
        running = frozenset(listed)
    reason = call.params.get("reason") or "worker lost"
    buried = state.bury(required(call.params, "worker"), reason, running, now)
    return {"ok": True, "jobs": buried}


def why(call: Call, state: QueueState, now: Instant) -> Reply:
    return state.why(required(call.params, "job_id"), now)._asdict()


def workers(call: Call, state: QueueState, now: Instant) -> Reply:
    return {"workers": [one._asdict() for one in state.workers(now)]}


def tick(call: Call, state: QueueState, now: Instant) -> Reply:
    return {"last": state.last_tick(required(call.params, "schedule"))}
