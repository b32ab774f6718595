"""`--burst`: when is there nothing left to do. Asks the owners; knows counts, not jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from istos_worker.errors import IstosError
from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import verb_key

if TYPE_CHECKING:
    from istos_worker.fleet.consumers import Consumers

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
BASE_QUIET_S = 2.5
"""Against a peer 0.3 owner, which has no `stats`: claims have been empty for two polls and nothing ran."""


async def until_empty(session: Asks, consumers: Consumers, *, token: str | None) -> None:
    """Returns once the consumed queues hold nothing ready, due or leased. Waits for an owner that is away."""
    idle_since = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if consumers.unconfirmed():
            idle_since = time.monotonic()
            continue
        idle_for_s = time.monotonic() - idle_since
        if await _all_empty(session, consumers, consumers.prefixes, token, idle_for_s):
            return


async def _all_empty(
    session: Asks, consumers: Consumers, prefixes: Sequence[str], token: str | None, idle_for_s: float
) -> bool:
    for prefix in prefixes:
        if consumers.speaks_base_only(prefix):
            if idle_for_s < BASE_QUIET_S:
                return False
        elif not await is_empty(session, prefix, token):
            return False
    return True


async def is_empty(session: Asks, prefix: str, token: str | None) -> bool:
    """False also when no owner answers: nothing is known then."""
    try:
        reply = await session.ask(
            verb_key(prefix, "stats"), attachment=Envelope(token=token).encode(), timeout_s=2.0
        )
        counts = {} if reply is None else decode_reply(reply).get("counts", {})
    except (TimeoutError, IstosError) as failed:
        log.warning("cannot ask for what %s holds: %s", prefix, failed)
        return False
    return bool(counts) and not counts.get("ready") and not counts.get("leased")
