"""What the door refuses (CONTRACT.md section 4, rule 12). Pure checks: they raise, or return what may come in."""

from __future__ import annotations

import math
import re
from hashlib import blake2b

from istos_worker.errors import BadRequestError, PayloadTooLargeError
from istos_worker.queue.records import NewJob, QueueSettings

MAX_ERROR_BYTES = 64 * 1024
MAX_REPLY_BYTES = 16 << 20
"""About as much as one reply brings of bodies, but for a single body that is larger: a claim or a page of dead letters
ends early there."""
MAX_TASKS_BYTES = 256 * 1024
"""The names of the tasks that a claim takes: the owner remembers them for each worker."""
MAX_PRIORITY = 2**31
MAX_DELAY_S = 10 * 366 * 86400.0
MAX_ATTEMPTS = 1_000_000
MAX_KEY = 256
MAX_HISTORY = 10
MAX_HISTORY_CHARS = 1000
MAX_CHORD_SIZE = 1_000_000
MAX_SCHEDULES = 10_000
TRUNCATED = " ... [truncated]"

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def is_valid_id(text: str) -> bool:
    return JOB_ID.fullmatch(text) is not None


def check_new_job(new: NewJob, settings: QueueSettings) -> None:
    if len(new.body) > settings.max_payload_bytes:
        raise PayloadTooLargeError(
            f"the job's body has {len(new.body)} bytes, more than the {settings.max_payload_bytes} allowed; "
            "keep large data elsewhere and enqueue a reference"
        )
    if not -MAX_PRIORITY <= new.priority <= MAX_PRIORITY:
        raise BadRequestError(f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {new.priority}")
    if new.delay_s:
        check_seconds("delay", new.delay_s)
    if new.job_id is not None and not is_valid_id(new.job_id):
        raise BadRequestError(f"job_id must be 1 to 64 of A-Z a-z 0-9 . _ -, got {new.job_id[:80]!r}")
    if new.max_attempts is not None and not 1 <= new.max_attempts <= MAX_ATTEMPTS:
        raise BadRequestError(f"max_attempts must be from 1 to {MAX_ATTEMPTS}, got {new.max_attempts}")
    if new.expires_s is not None:
        check_seconds("expires", new.expires_s)
    _check_texts(new, settings)


def _check_texts(new: NewJob, settings: QueueSettings) -> None:
    if (
        new.wf is None
        and new.correlation_id is None
        and new.traceparent is None
        and new.unique_key is None
        and new.schedule is None
    ):
        return
    if new.wf is not None and len(new.wf) > 2 * settings.max_payload_bytes:
        raise PayloadTooLargeError(f"the job's workflow has {len(new.wf)} characters, too many")
    if new.wf is not None and not new.wf.isascii():
        raise BadRequestError("wf must be base64 text")
    if new.schedule is not None and new.tick is None:
        raise BadRequestError("schedule needs tick")
    for name in ("unique_key", "schedule", "tick", "correlation_id", "traceparent"):
        text = getattr(new, name)
        if text is not None:
            check_text(name, text)


def check_text(name: str, text: str) -> None:
    if not 1 <= len(text) <= MAX_KEY:
        raise BadRequestError(f"{name} must have 1 to {MAX_KEY} characters, got {len(text)}")
    if not text.isascii() and not _is_encodable(text):
        raise BadRequestError(f"{name} has half a character in it: {text[:80]!r}")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds <= MAX_DELAY_S or math.isnan(seconds):
        raise BadRequestError(f"{name} must be seconds from 0 to {MAX_DELAY_S:g}, got {seconds!r}")


def check_result(result: bytes | None, settings: QueueSettings) -> None:
    if result is not None and len(result) > settings.max_payload_bytes:
        raise PayloadTooLargeError(
            f"the job's result has {len(result)} bytes, more than the {settings.max_payload_bytes} allowed; "
            "keep large data elsewhere and return a reference"
        )


def short_error(error: str | None) -> str | None:
    """The text, cut to 64 KiB of UTF-8 and marked when it was longer."""
    if not error:
        return None
    if len(error) * 4 <= MAX_ERROR_BYTES:
        return error.encode("utf-8", "replace").decode() if not error.isascii() else error
    raw = error.encode("utf-8", "replace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode()
    return raw[: MAX_ERROR_BYTES - len(TRUNCATED)].decode("utf-8", "ignore") + TRUNCATED


def derived_id(parent: str, suffix: str) -> str:
    """`{parent}{suffix}`; where that is no valid id, a hash of the parent takes its place."""
    candidate = parent + suffix
    if is_valid_id(candidate):
        return candidate
    return blake2b(parent.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() + suffix
