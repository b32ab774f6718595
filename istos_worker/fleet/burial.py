"""Tells the owners that a worker is dead for certain, so that its jobs are back at once. Knows one verb: bury."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import encode_params
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import verb_key

log = logging.getLogger(__name__)

TRIES = 20
PAUSE_S = 0.25


async def bury(session: Asks, prefixes: Sequence[str], body: Mapping[str, Any], token: str | None) -> None:
    """Carries out the message that the supervisor sends for a dead worker (cli/worker_hooks.py)."""
    await asyncio.gather(*(_bury_in(session, prefix, body, token) for prefix in prefixes))


async def _bury_in(session: Asks, prefix: str, body: Mapping[str, Any], token: str | None) -> None:
    running = [held.rpartition("/")[2] for held in body["running"] if held.rpartition("/")[0] == prefix]
    params = encode_params({"worker": body["bury"], "reason": body["reason"]})
    payload = orjson.dumps({"running": running})
    attachment = Envelope(token=token).encode()
    for _ in range(TRIES):
        try:
            reply = await session.ask(
                verb_key(prefix, "bury"), params, payload=payload, attachment=attachment, timeout_s=2.0
            )
        except TimeoutError:
            reply = None
        if reply is not None:
            log.info(
                "told the owner of %s of a dead worker",
                prefix,
                extra={"queue": prefix, "worker": body["bury"]},
            )
            return
        await asyncio.sleep(PAUSE_S)
    # An owner that is away learns of it by the worker's liveliness token; one that is a peer 0.3 by its lease.
    log.info("no owner of %s took note of the dead worker %s", prefix, body["bury"])
