"""Continuations for other queues: sent until their owner has them. Knows how to send; not what they mean.

A continuation has a derived job id, so sending it twice enqueues it once (except at a peer 0.3 owner, where
delivery is at least once).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from istos_worker.errors import IstosError
from istos_worker.queue.records import NewJob, Outgoing
from istos_worker.wire.codec import decode_reply, encode_params
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import verb_key
from istos_worker.wire.session import Session

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_TRY_S = 5.0
_AT_ONCE = 32


class Courier:
    """Carries continuations, each queue's in order of arrival, 32 at a time."""

    def __init__(
        self, session: Session, *, token: str | None, on_sent: Callable[[Sequence[int]], None]
    ) -> None:
        self._session = session
        self._token = token
        self._on_sent = on_sent
        self._waiting: dict[str, deque[Outgoing]] = {}
        self._known: set[int] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def take(self, outgoing: Sequence[Outgoing]) -> None:
        """Sends these too. One that is already under way is not sent a second time."""
        for one in outgoing:
            if one.note_id in self._known:
                continue
            self._known.add(one.note_id)
            self._waiting.setdefault(one.prefix, deque()).append(one)
            if one.prefix not in self._tasks:
                self._tasks[one.prefix] = asyncio.create_task(self._serve(one.prefix))

    async def aclose(self) -> None:
        """Stops sending. What is not sent stays noted, and goes out after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, prefix: str) -> None:
        pause_s = _FIRST_PAUSE_S
        waiting = self._waiting[prefix]
        while waiting:
            batch = [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]
            refusals = await asyncio.gather(*(self._send(one) for one in batch))
            failed = [(one, why) for one, why in zip(batch, refusals, strict=True) if why is not None]
            sent = [one.note_id for one, why in zip(batch, refusals, strict=True) if why is None]
            if sent:
                self._known.difference_update(sent)
                self._on_sent(sent)
                pause_s = _FIRST_PAUSE_S
            if failed:
                waiting.extendleft(one for one, _ in reversed(failed))
                if pause_s >= 1:
                    log.warning(
                        "queue %s: %d jobs of workflows wait for it: %s", prefix, len(waiting), failed[0][1]
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        del self._tasks[prefix], self._waiting[prefix]

    async def _send(self, one: Outgoing) -> str | None:
        """None when the other owner has it, else why not."""
        job = one.job
        attachment = Envelope(
            token=self._token, correlation_id=job.correlation_id, traceparent=job.traceparent
        ).encode()
        try:
            raw = await self._session.ask(
                verb_key(one.prefix, "enqueue"),
                encode_params(continuation_params(job)),
                payload=job.body,
                attachment=attachment,
                timeout_s=_TRY_S,
            )
            if raw is None:
                return "no owner answers"
            decode_reply(raw)
        except TimeoutError:
            return "its owner does not answer"
        except IstosError as refused:
            return f"{refused.code}: {refused.message}"
        return None


def continuation_params(job: NewJob) -> dict[str, object]:
    named = {
        "job_id": job.job_id,
        "wf": job.wf,
        "priority": job.priority or None,
        "delay": job.delay_s or None,
        "max_attempts": job.max_attempts,
        "expires": job.expires_s,
        "unique_key": job.unique_key,
    }
    return {name: value for name, value in named.items() if value is not None}
