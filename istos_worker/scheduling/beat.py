"""The loop that enqueues what a schedule makes due. Knows clocks and the client; which ticks are due, `ticks` says.

Any number of beats may run the same schedule: the owner takes each tick once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from istos_worker.errors import IstosError, NotFoundError, OwnerUnreachable
from istos_worker.scheduling.plan import Schedule, tick_job_id

if TYPE_CHECKING:
    from istos_worker.client.bodies import Serializes
    from istos_worker.client.producer import Token

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 30.0
"""The wall clock is looked at again after this long: it may have been stepped, or the machine asleep."""
_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0


def utc_now() -> datetime:
    return datetime.now(UTC)


class Enqueues(Protocol):
    """What a beat needs of a client."""

    async def enqueue(
        self,
        prefix: str,
        data: Any,
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        job_id: str | None = None,
        schedule: str | None = None,
        tick: str | None = None,
    ) -> str: ...

    async def last_tick(self, prefix: str, schedule: str, *, token: Token = None) -> str | None: ...


class Beat:
    """`async with Beat(schedules, client): ...` fires until the end of the block.

    `may_fire(prefix)` is asked before each tick: where this process owns the queue, only the active owner does.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        client: Enqueues,
        *,
        may_fire: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._pulses = [_Pulse(schedule, client, may_fire, clock) for schedule in schedules]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(pulse.run()) for pulse in self._pulses]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Pulse:
    """One schedule's loop."""

    def __init__(
        self,
        schedule: Schedule,
        client: Enqueues,
        may_fire: Callable[[str], bool],
        clock: Callable[[], datetime],
    ) -> None:
        self._schedule = schedule
        self._client = client
        self._may_fire = may_fire
        self._clock = clock
        self._started = clock()
        self._last: str | None = None
        self._has_asked = False
        self._has_complained = False

    async def run(self) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                wait_s = await self.step()
                retry_s = _RETRY_S
                self._has_complained = False
            except Exception as failed:
                # The owner may be away for hours: say so once, and go on trying.
                self._complain(failed)
                wait_s, retry_s = retry_s, min(retry_s * 2, _LONGEST_RETRY_S)
            await asyncio.sleep(wait_s)

    def _complain(self, failed: Exception) -> None:
        if self._has_complained:
            return
        self._has_complained = True
        log.warning(
            "schedule %s of queue %s cannot fire, will keep trying: %s",
            self._schedule.name,
            self._schedule.prefix,
            failed,
            exc_info=None if isinstance(failed, IstosError) else failed,
        )

    async def step(self) -> float:
        """Fires what is due. Returns the seconds until it should be called again."""
        if not self._may_fire(self._schedule.prefix):
            self._has_asked = False  # what another owner fires is asked for when it is our turn
            return _RETRY_S
        if not self._has_asked:
            await self._learn_last()
        due, upcoming = self._look()
        if due and self._schedule.every_s is not None:
            # Another replica may keep this interval at other times than ours: then its times hold.
            await self._learn_last()
            due, upcoming = self._look()
        for tick in due:
            await self._fire(tick)
        left_s = (upcoming - self._clock()).total_seconds()
        return max(min(left_s, _LOOK_AGAIN_S), 0.0)

    def _look(self) -> tuple[list[str], datetime]:
        return self._schedule.due(self._last, self._clock(), self._started)

    async def _learn_last(self) -> None:
        try:
            told = await self._client.last_tick(
                self._schedule.prefix, self._schedule.name, token=self._schedule.token
            )
        except OwnerUnreachable:
            raise
        except NotFoundError:  # a peer 0.3 owner remembers no ticks: ours alone count
            told = None
        self._has_asked = True
        if told is not None and (self._last is None or told > self._last):
            self._last = told

    async def _fire(self, tick: str) -> None:
        schedule = self._schedule
        await self._client.enqueue(
            schedule.prefix,
            schedule.data,
            priority=schedule.priority,
            serializer=schedule.serializer,
            token=schedule.token,
            job_id=tick_job_id(schedule.name, tick),
            schedule=schedule.name,
            tick=tick,
        )
        self._last = tick
