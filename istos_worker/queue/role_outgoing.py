"""Continuations for other queues: sent until their owner has them. Knows how to send; not what they mean.

A continuation has a derived job id, so sending it twice enqueues it once (except at a peer 0.3 owner, where
delivery is at least once). One that the other owner refuses for good goes back, to become a dead letter here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from istos_worker.errors import BadRequestError, IstosError, PayloadTooLargeError
from istos_worker.queue.records import NewJob, Outgoing
from istos_worker.wire.codec import decode_reply, encode_params
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import queue_prefix, verb_key
from istos_worker.wire.session import Session

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_TRY_S = 5.0
_AT_ONCE = 32


class Failure(NamedTuple):
    """Why a continuation was not taken; `is_final` when asking again would be in vain."""

    note_id: int
    reason: str
    is_final: bool = False


class Courier:
    """Carries continuations to each queue, 32 at a time. What fails waits behind what has not been tried."""

    def __init__(
        self,
        session: Session,
        *,
        token: str | None,
        on_sent: Callable[[Sequence[int]], None],
        on_refused: Callable[[Sequence[Failure]], None],
    ) -> None:
        self._session = session
        self._token = token
        self._on_sent = on_sent
        self._on_refused = on_refused
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
            answers = await asyncio.gather(*(self._send(one) for one in batch))
            failures = {failure.note_id: failure for failure in answers if failure is not None}
            self._report(prefix, batch, failures)
            again = [one for one in batch if one.note_id in failures and not failures[one.note_id].is_final]
            waiting.extend(again)
            if len(again) < len(batch):
                pause_s = _FIRST_PAUSE_S
            if again:
                if pause_s >= 1:
                    why = failures[again[0].note_id].reason
                    log.warning("queue %s: %d jobs of workflows wait for it: %s", prefix, len(waiting), why)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        del self._tasks[prefix], self._waiting[prefix]

    def _report(self, prefix: str, batch: Sequence[Outgoing], failures: dict[int, Failure]) -> None:
        """What need not be tried again is let go of."""
        sent = [one.note_id for one in batch if one.note_id not in failures]
        refused = [failure for failure in failures.values() if failure.is_final]
        self._known.difference_update(sent, (failure.note_id for failure in refused))
        if sent:
            self._on_sent(sent)
        if refused:
            log.error(
                "queue %s refuses %d jobs of workflows; they are dead letters here now: %s",
                prefix,
                len(refused),
                refused[0].reason,
            )
            self._on_refused(refused)

    async def _send(self, one: Outgoing) -> Failure | None:
        """None when the other owner has it."""
        job = one.job
        attachment = Envelope(
            token=self._token, correlation_id=job.correlation_id, traceparent=job.traceparent
        ).encode()
        try:
            raw = await self._session.ask(
                verb_key(queue_prefix(one.prefix), "enqueue"),
                encode_params(continuation_params(job)),
                payload=job.body,
                attachment=attachment,
                timeout_s=_TRY_S,
            )
            if raw is None:
                return Failure(one.note_id, "no owner answers")
            decode_reply(raw)
        except TimeoutError:
            return Failure(one.note_id, "its owner does not answer")
        except IstosError as refused:
            is_final = isinstance(refused, (BadRequestError, PayloadTooLargeError))
            return Failure(one.note_id, f"{refused.code}: {refused.message}", is_final)
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
