"""How records are written to the medium, and read back by this version or a later one. Knows bytes; no rules.

A head is a JSON list: format number, kind, then the kind's fields; what stands at its default at the end is left
out, and what is rare stands in an object of named extras. A number as kind is a job in that state; a letter is one
of the queue's other records.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from istos_worker.errors import StorageUnavailableError
from istos_worker.queue.bodies import task_of
from istos_worker.queue.records import CANCELLED, DONE, Job

FORMAT: Final = 1
TOMBSTONES: Final = "t"
REPORT: Final = "r"
CLOSED: Final = "c"
OUTGOING: Final = "o"

_dumps = orjson.dumps
_NAMED: Final = (
    ("e", "last_error"),
    ("h", "history"),
    ("w", "wf"),
    ("c", "correlation_id"),
    ("t", "traceparent"),
    ("u", "unique_key"),
    ("x", "expires_at"),
    ("p", "bound_for"),
    ("d", "completed_at"),
    ("n", "crashes"),
    ("a", "cancel_asked"),
)


def encode_job(job: Job) -> bytes:
    holder = job.holder
    extras = _extras(job)
    if extras is None and holder is None and not job.fence and not job.not_before:
        return _dumps((FORMAT, job.state, job.id, job.max_attempts, job.priority, job.enqueued_at))
    common = (
        FORMAT,
        job.state,
        job.id,
        job.max_attempts,
        job.priority,
        job.enqueued_at,
        job.attempts,
        job.fence,
        job.not_before,
        job.lease_until,
        None if holder is None else holder.id,
        job.claim_seq,
        0 if holder is None or not holder.tokened else 1,
    )
    return _dumps(common if extras is None else (*common, extras))


def _extras(job: Job) -> dict[str, Any] | None:
    if not (
        job.last_error is not None
        or job.wf is not None
        or job.correlation_id is not None
        or job.traceparent is not None
        or job.unique_key is not None
        or job.expires_at
        or job.state >= DONE
        or job.crashes
        or job.cancel_asked
        or job.history is not None
    ):
        return None
    extras: dict[str, Any] = {}
    for key, name in _NAMED:
        value = getattr(job, name)
        if value:
            extras[key] = value
    if job.result is not None:
        _put_result(extras, job.result)
    return extras


def _put_result(extras: dict[str, Any], result: bytes) -> None:
    try:
        extras["r"] = result.decode()
    except UnicodeDecodeError:
        extras["b"] = base64.b64encode(result).decode()


def decode_head(head: bytes, seq: int) -> list[Any]:
    """The head's fields, kind first. Raises StorageUnavailableError for what this version cannot read."""
    try:
        fields = orjson.loads(head)
        number = fields[0]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError) as broken:
        raise StorageUnavailableError(f"record {seq} is damaged: {head[:60]!r}") from broken
    if number != FORMAT:
        raise StorageUnavailableError(
            f"record {seq} has format {number!r}, this version reads {FORMAT}: a newer version wrote this queue"
        )
    return fields  # type: ignore[no-any-return]


class JobHead(NamedTuple):
    """A decoded job and what its head says of its holder, which only the holders can bring to life."""

    job: Job
    worker: str | None
    tokened: bool


def decode_job(fields: Sequence[Any], seq: int, body: bytes) -> JobHead:
    count = len(fields)
    state = fields[1]
    keeps_body = state not in (DONE, CANCELLED)
    job = Job(
        seq,
        fields[2],
        body if keeps_body else b"",
        fields[3],
        fields[5],
        fields[4],
        task_of(body) if keeps_body else None,
        state,
    )
    job.stored = True
    if count <= 6:
        return JobHead(job, None, False)
    job.attempts, job.fence, job.not_before, job.lease_until = fields[6:10]
    job.claim_seq = fields[11]
    if count > 13:
        _read_extras(job, fields[13])
    return JobHead(job, fields[10], bool(fields[12]))


def _read_extras(job: Job, extras: dict[str, Any]) -> None:
    for key, name in _NAMED:
        if key in extras:
            setattr(job, name, extras[key])
    job.cancel_asked = bool(job.cancel_asked)
    if "r" in extras:
        job.result = extras["r"].encode()
    elif "b" in extras:
        job.result = base64.b64decode(extras["b"])
