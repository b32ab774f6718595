"""Delivers webhooks to an HTTP server that fails at first, with retries.

    python -m examples.deliver_webhooks         # starts a server and a fleet, delivers, prints what arrived

What it shows: an async handler that waits for the network while others run, failures that are tried again with
growing pauses, a receiver's "come back later" (Retry), and one that will never work (Discard). The job's id goes
along as the idempotency key, so a receiver can tell a repeated delivery.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from examples.fleet import Fleet
from istos_worker import App, Discard, JobContext, Retry
from istos_worker.client import Client

WEBHOOKS = "webhooks/deliver"

app = App("deliver-webhooks")
app.queue(WEBHOOKS, max_attempts=8, retry_backoff_s=0.1, retry_backoff_max_s=5.0, keep_results=True)


@app.worker(WEBHOOKS, concurrency=20)
async def deliver(job: dict[str, Any], ctx: JobContext) -> int:
    """One delivery; the status that the receiver answered with."""
    status = await post(job["url"], json.dumps(job["event"]).encode(), idempotency_key=ctx.job_id)
    if status == 429:
        raise Retry(after_s=0.2)
    if status == 410:
        raise Discard(f"{job['url']} is gone for good")
    if status >= 400:
        raise RuntimeError(f"{job['url']} answered {status}")
    return status


async def post(url: str, body: bytes, *, idempotency_key: str) -> int:
    """The smallest HTTP client that does; a real program would use httpx or aiohttp."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {idempotency_key}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        async with asyncio.timeout(10):
            status_line = await reader.readline()
        return int(status_line.split()[1])
    finally:
        writer.close()


class Receiver(ThreadingHTTPServer):
    """Refuses the first two deliveries of every event, and accepts none at /gone."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tries: Counter[str] = Counter()
        self.accepted: dict[str, Any] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self._judge(self.headers["Idempotency-Key"], event))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _judge(self, key: str, event: Any) -> int:
        if self.path == "/gone":
            return 410
        with self.server.lock:
            self.server.tries[key] += 1
            if self.server.tries[key] <= 2:
                return (500, 429)[self.server.tries[key] - 1]
            self.server.accepted[key] = event
        return 204

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Silent."""


async def deliver_all(fleet: Fleet, receiver: Receiver, number: int) -> tuple[int, int]:
    """How many events were delivered, and how many are dead letters."""
    jobs = [{"url": f"{receiver.url}/orders", "event": {"order": order}} for order in range(number)]
    jobs.append({"url": f"{receiver.url}/gone", "event": {"order": -1}})
    async with Client(fleet.network) as client:
        ids = await client.enqueue_many(WEBHOOKS, jobs, timeout_s=30)
        ended = [await client.result(WEBHOOKS, job_id, wait_s=60) for job_id in ids]
    states = Counter(one["state"] for one in ended)
    return states["done"], states["dead"]


def main(number: int = 50) -> int:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever, name="receiver")
    thread.start()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="deliver-webhooks-") as folder,
            Fleet("examples.deliver_webhooks", Path(folder), "--procs", "2") as fleet,
        ):
            delivered, dead = asyncio.run(fleet.while_running(deliver_all(fleet, receiver, number)))
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()
    tries = sum(receiver.tries.values())
    print(f"{delivered} events delivered in {tries} tries, {dead} given up: the receiver said it is gone")
    return fleet.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
