"""The producing process: `python -m benchmarks.apps.producer MODULE MODE ...`; prints one JSON line.

Knows the client of MODULE only as an object with `enqueue` and perhaps `enqueue_many`. A blocking client is
called straight from the coroutine: it has nothing to wait for beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.apps.body import quiet

AT_ONCE = 16
BATCH = 500
_BARE_BYTES = 40


def noop(job: int, size_bytes: int) -> dict[str, Any]:
    return {"kind": "noop", "job": job, "pad": "x" * max(0, size_bytes - _BARE_BYTES)}


async def one_by_one(client: Any, payloads: Iterator[dict[str, Any]]) -> None:
    """As a program without an event loop, where the client can do without."""
    blocking = getattr(client, "enqueue_blocking", None)
    if blocking is None:
        await in_loop(client, payloads)
    else:
        for payload in payloads:
            blocking(payload)


async def in_loop(client: Any, payloads: Iterator[dict[str, Any]]) -> None:
    for payload in payloads:
        await client.enqueue(payload)


async def at_once(client: Any, payloads: Iterator[dict[str, Any]]) -> None:
    await asyncio.gather(*(in_loop(client, payloads) for _ in range(AT_ONCE)))


async def in_bulk(client: Any, payloads: Iterator[dict[str, Any]]) -> None:
    while batch := list(itertools.islice(payloads, BATCH)):
        await client.enqueue_many(batch)


WAYS = {"one": one_by_one, "loop": in_loop, "sixteen": at_once, "bulk": in_bulk}


async def enqueue(client: Any, args: argparse.Namespace) -> dict[str, float]:
    """As fast as the client goes."""
    jobs = range(args.first, args.first + args.jobs)
    payloads = (noop(job, args.size) for job in jobs)
    begun_ns = time.monotonic_ns()
    await WAYS[args.way](client, payloads)
    ended_ns = time.monotonic_ns()
    return {
        "begun_ns": begun_ns,
        "ended_ns": ended_ns,
        "per_s": args.jobs / max(1e-9, (ended_ns - begun_ns) / 1e9),
    }


async def pace(client: Any, args: argparse.Namespace) -> dict[str, float]:
    """One job each `--every-ms`, each with its time of sending; every `--long-every`th one sleeps."""
    due = time.perf_counter()
    for job in range(args.first, args.first + args.jobs):
        payload = noop(job, args.size)
        if args.long_every and job % args.long_every == 0:
            payload.update(kind="sleep", s=args.long_s)
        else:
            payload["sent_ns"] = time.monotonic_ns()
        await client.enqueue(payload)
        due += args.every_ms / 1000
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return {"jobs": args.jobs}


async def listed(client: Any, args: argparse.Namespace) -> dict[str, float]:
    payloads = json.loads(args.payloads)
    await one_by_one(client, iter(payloads))
    return {"jobs": len(payloads)}


async def call(client: Any, args: argparse.Namespace) -> dict[str, float]:
    """A verb without arguments that only some clients have: pause, resume."""
    await getattr(client, args.verb)()
    return {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apps.producer")
    parser.add_argument("module")
    modes = parser.add_subparsers(required=True)
    for name, run in (("enqueue", enqueue), ("pace", pace)):
        mode = modes.add_parser(name)
        mode.set_defaults(run=run)
        mode.add_argument("--jobs", type=int, required=True)
        mode.add_argument("--first", type=int, default=0)
        mode.add_argument("--size", type=int, default=100, help="bytes of a job's JSON, about")
        mode.add_argument("--way", choices=WAYS, default="one")
        mode.add_argument("--every-ms", type=float, default=20.0)
        mode.add_argument("--long-every", type=int, default=0)
        mode.add_argument("--long-s", type=float, default=1.0)
    mode = modes.add_parser("list")
    mode.set_defaults(run=listed)
    mode.add_argument("payloads")
    mode = modes.add_parser("call")
    mode.set_defaults(run=call)
    mode.add_argument("verb")
    return parser


class _Awaited:
    """A blocking client in an asynchronous one's shape."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    async def __aenter__(self) -> _Awaited:
        self._blocking.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._blocking.__exit__(*error)

    async def enqueue(self, payload: dict[str, Any]) -> None:
        self._blocking.enqueue(payload)

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
        self._blocking.enqueue_many(payloads)


async def main() -> None:
    args = _parser().parse_args()
    quiet()
    client = importlib.import_module(args.module).Client()
    async with client if hasattr(client, "__aenter__") else _Awaited(client) as opened:
        report = await args.run(opened, args)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
