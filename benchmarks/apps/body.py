"""The job that every system runs, in a blocking and an asynchronous form. Knows no queue.

A payload is a JSON object: `kind` (noop, sleep, crash), `job` (its number), and for `sleep` the seconds in
`s`; `sent_ns` where the start latency is measured; `pad` makes up the size.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.record import FILE_VARIABLE, Kind, Recorder

Payload = Mapping[str, Any]

RECORDS = os.environ.get(FILE_VARIABLE, os.devnull)
SLOTS = int(os.environ.get("BENCH_SLOTS", "8"))
REDIS_URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
POSTGRES_URL = os.environ.get("BENCH_POSTGRES", "postgresql://127.0.0.1/postgres")
CRASH_S = 30.0

_recorder = Recorder(RECORDS)


def quiet() -> None:
    """The same for every system: no log line per job."""
    logging.disable(logging.INFO)


def run(payload: Payload) -> None:
    sleep_s = _begin(payload)
    if sleep_s is None:
        return
    try:
        time.sleep(sleep_s)
    except BaseException:
        _recorder.write(Kind.CANCELLED, payload["job"])
        raise
    _recorder.write(Kind.FINISHED, payload["job"])


async def run_async(payload: Payload) -> None:
    sleep_s = _begin(payload)
    if sleep_s is None:
        return
    try:
        await asyncio.sleep(sleep_s)
    except BaseException:
        _recorder.write(Kind.CANCELLED, payload["job"])
        raise
    _recorder.write(Kind.FINISHED, payload["job"])


def _begin(payload: Payload) -> float | None:
    """Records the start; the seconds to sleep, or None where the job is done already."""
    job: int = payload["job"]
    if payload["kind"] == "noop":
        sent_ns = payload.get("sent_ns")
        _recorder.write(Kind.DONE, job, waited_ns=time.monotonic_ns() - sent_ns if sent_ns else 0)
        return None
    _recorder.write(Kind.STARTED, job)
    if payload["kind"] == "crash":
        return CRASH_S if _first_attempt(job) else 0.0
    return float(payload["s"])


def _first_attempt(job: int) -> bool:
    """By a marker file, since not every system tells a job which attempt it is."""
    try:
        os.close(os.open(f"{RECORDS}.attempt-{job}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
