"""What Zenoh alone asks for the bytes of our exchanges: `python -m benchmarks.bare_zenoh`.

Two processes over loopback TCP, no queue: the asker sends a settle's outcomes, the owner answers from
Zenoh's own thread with as many prepared jobs. Nothing is decoded, stored or run, so no worker that asks a
queue by query and reply can be faster than this. docs/performance.md sets our figures beside these.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import zenoh

from benchmarks.services import free_port

KEY = "bench/bare"
JOBS_PER_TRIP = (1, 8, 32)
ASKERS = (1, 2)
_SECONDS = 2.0
_BODY = base64.b64encode(json.dumps({"kind": "noop", "job": 123456, "pad": "x" * 60}).encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """What one asker did."""

    trips: int
    seconds: float
    cpu_s: float

    def line(self) -> str:
        return json.dumps({"trips": self.trips, "seconds": self.seconds, "cpu_s": self.cpu_s})


def jobs(count: int) -> bytes:
    """A claim's answer, as the owner writes it."""
    job = {
        "job_id": "0" * 32,
        "attempt": 1,
        "max_attempts": 5,
        "last_error": None,
        "data": _BODY,
        "wf": None,
        "correlation_id": None,
        "traceparent": None,
        "fence": 123456,
    }
    return json.dumps({"outcomes": [{"ok": True}] * count, "jobs": [job] * count, "lease_s": 30.0}).encode()


def outcomes(count: int) -> bytes:
    """A settle's payload, as the worker writes it."""
    outcome = {"verb": "ack", "job_id": "0" * 32, "attempt": 1, "fence": 123456, "result": None}
    return json.dumps({"outcomes": [outcome] * count}).encode()


def opened(mode: str, port: int) -> zenoh.Session:
    endpoints = {"endpoints": [f"tcp/127.0.0.1:{port}"]}
    role = "listen" if mode == "peer" else "connect"
    return zenoh.open(
        zenoh.Config.from_json5(
            json.dumps({"mode": mode, role: endpoints, "scouting": {"multicast": {"enabled": False}}})
        )
    )


@contextlib.contextmanager
def owner(port: int) -> Iterator[None]:
    """In this process: as many jobs as the selector asks for."""
    answers = {f"n={count}": jobs(count) for count in JOBS_PER_TRIP}

    def answer(query: zenoh.Query) -> None:
        query.reply(KEY, answers[str(query.parameters)])
        query.drop()  # type: ignore[no-untyped-call]

    session = opened("peer", port)
    try:
        session.declare_queryable(
            KEY, zenoh.handlers.Callback(answer, lambda: None, indirect=False), complete=True
        )
        yield
    finally:
        session.close()  # type: ignore[no-untyped-call]


def ask(port: int, count: int) -> Trips:
    """One trip after the other; the first second only warms up."""
    session = opened("client", port)
    payload, selector = outcomes(count), f"{KEY}?n={count}"
    try:
        _trips(session, selector, payload, _SECONDS / 2)
        return _trips(session, selector, payload, _SECONDS)
    finally:
        session.close()  # type: ignore[no-untyped-call]


def _trips(session: zenoh.Session, selector: str, payload: bytes, seconds: float) -> Trips:
    done, begun, cpu = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - begun) < seconds:
        for reply in session.get(selector, payload=payload):
            if reply.ok is not None:
                reply.ok.payload.to_bytes()
                done += 1
    return Trips(trips=done, seconds=passed, cpu_s=time.process_time() - cpu)


def puts(port: int) -> float:
    """Publications a second, from Python, of one job's bytes."""
    session = opened("client", port)
    payload = jobs(1)
    try:
        begun, sent = time.perf_counter(), 0
        while time.perf_counter() - begun < _SECONDS / 2:
            for _ in range(100):
                session.put(f"{KEY}/put", payload)
            sent += 100
        return sent / (time.perf_counter() - begun)
    finally:
        session.close()  # type: ignore[no-untyped-call]


def asking(port: int, count: int, askers: int) -> list[Trips]:
    command = [sys.executable, "-m", "benchmarks.bare_zenoh", str(port), str(count)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(askers)]
    return [Trips(**json.loads(process.communicate(timeout=60)[0])) for process in started]


def table(port: int) -> Iterator[str]:
    yield "| jobs a trip | askers | trips /s | jobs /s | round trip ms | asker CPU us/job | owner CPU us/job |"
    yield "|---|---|---|---|---|---|---|"
    for count in JOBS_PER_TRIP:
        for askers in ASKERS:
            cpu = time.process_time()
            found = asking(port, count, askers)
            # The warm-up is half as long as what is counted.
            owner_s = (time.process_time() - cpu) / 1.5
            trips = sum(one.trips for one in found)
            per_s = sum(one.trips / one.seconds for one in found)
            asker_us = sum(one.cpu_s for one in found) / trips / count * 1e6
            yield (
                f"| {count} | {askers} | {per_s:,.0f} | {per_s * count:,.0f} | {askers / per_s * 1e3:.2f} "
                f"| {asker_us:.1f} | {owner_s / trips / count * 1e6:.1f} |"
            )


def main() -> None:
    if len(sys.argv) == 3:
        print(ask(int(sys.argv[1]), int(sys.argv[2])).line())
        return
    port = free_port()
    print(f"eclipse-zenoh {version('eclipse-zenoh')}, {os.cpu_count()} cores, loopback TCP\n")
    with owner(port):
        for line in table(port):
            print(line, flush=True)
        print(f"\nput: {puts(port):,.0f} /s")


if __name__ == "__main__":
    main()
