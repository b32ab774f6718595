"""What runs between a worker's start and its end: finds the owner, lets the right pump work, finds it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import orjson

from istos_worker.serialization import Serializer
from istos_worker.wire.asking import Asks
from istos_worker.worker.base_pump import BasePump
from istos_worker.worker.handlers import Handlers
from istos_worker.worker.link import Dialect, OwnerLink, OwnerLost
from istos_worker.worker.outage import Outage
from istos_worker.worker.outbox import Outbox
from istos_worker.worker.prefetch import Prefetch
from istos_worker.worker.pump import ClaimNumbers, SettlePump
from istos_worker.worker.runner import Runner
from istos_worker.worker.settings import WorkerHooks, WorkerSettings
from istos_worker.worker.slots import Slots
from istos_worker.worker.statistics import Statistics
from istos_worker.worker.threads import SlotThreads
from istos_worker.worker.workplace import Gate, Workplace

log = logging.getLogger(__name__)
_LEAVING_S = 0.5


class Consumer:
    """What runs between start and stop: finds the owner, lets the right pump work, and finds it again."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        session: Asks,
        handlers: Handlers,
        serializer: Serializer,
        statistics: Statistics,
        hooks: WorkerHooks,
        gate: Gate,
    ) -> None:
        self._gate = gate
        self._link = OwnerLink(session, settings)
        self._outage = Outage(settings.prefix, statistics=statistics, on_change=hooks.on_change)
        self._numbers = ClaimNumbers()
        self._leaving_since: float | None = None
        self._nudged = asyncio.Event()
        self._pump: SettlePump | BasePump | None = None
        self._threads = SlotThreads(settings.concurrency, name=settings.prefix, on_freed=self._freed)
        self._runner = Runner(
            handlers,
            serializer=serializer,
            run_sync=self._threads.run,
            job_timeout_s=settings.job_timeout_s,
        )
        prefetch = Prefetch(within_s=settings.prefetch_s, limit=settings.prefetch_max)
        self._outbox = Outbox(statistics, on_added=self.wake)
        self.slots = Slots(
            runner=self._runner,
            threads=self._threads,
            prefetch=prefetch,
            statistics=statistics,
            hooks=hooks,
            on_outcome=self._outbox.add,
        )
        place = Workplace(
            settings=settings,
            link=self._link,
            slots=self.slots,
            outbox=self._outbox,
            gate=gate,
            on_ready=self._outage.over,
        )
        self._settle = SettlePump(place, prefetch=prefetch, numbers=self._numbers, tasks=handlers.announced())
        self._base = BasePump(place, serializer=serializer)

    def _freed(self) -> None:
        self.slots.fill()
        self.wake()

    def wake(self) -> None:
        if self._pump is not None:
            self._pump.wake()
        elif not self._gate.open:
            self._nudged.set()

    def notified(self, _: list[bytes]) -> None:
        self._nudged.set()
        self._base.notified()

    def ordered(self, payloads: list[bytes]) -> None:
        """Orders of the owner about jobs held here."""
        for payload in payloads:
            try:
                orders = orjson.loads(payload)
                for order in orders.get("cancel") or ():
                    self.slots.cancelled(*_named(order))
                for order in orders.get("lost") or ():
                    self.slots.lost(*_named(order))
            except (ValueError, TypeError, KeyError, AttributeError) as broken:
                log.warning("an order of the owner cannot be read: %s", broken)

    async def run(self) -> None:
        while True:
            try:
                await self._serve(await self._link.probe())
            except OwnerLost as lost:
                self._outage.note(str(lost), refused=lost.refused)
            except Exception as failed:
                log.exception("the worker of %s failed, will retry", self._link.prefix)
                self._outage.note(str(failed))
            else:
                return
            if self._may_leave():
                return
            await self._pause()

    def _may_leave(self) -> bool:
        """Whether a drain can end without an owner: nothing is held, as far as is known. A claim whose reply was
        lost may have brought jobs, so the owner is looked for a moment longer."""
        if not self._gate.draining or not self.slots.idle or self._outbox:
            return False
        now = asyncio.get_running_loop().time()
        if self._leaving_since is None:
            self._leaving_since = now
        return not self._numbers.unanswered or now - self._leaving_since > _LEAVING_S

    async def _serve(self, dialect: Dialect) -> None:
        """Raises OwnerLost; returns when a drain is complete."""
        self._outage.owner(dialect)
        self._runner.can_release = dialect == "istos-worker"
        self._pump = self._settle if dialect == "istos-worker" else self._base
        try:
            await self._pump.run()
        finally:
            self._pump = None

    async def _pause(self) -> None:
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._outage.pause_s()):
                await self._nudged.wait()

    def close(self) -> None:
        self._outage.close()
        self._threads.close()


def _named(order: Any) -> tuple[str, int | None]:
    if isinstance(order, str):
        return order, None
    return order["job_id"], order.get("fence")
