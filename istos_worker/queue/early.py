"""Jobs that start before they are durable (docs/decisions/start-before-sync.md). Knows turns; not the medium."""

from __future__ import annotations

from collections.abc import Sequence

from istos_worker.queue.operation import Operation, only_brings_jobs
from istos_worker.queue.records import Effects, HandedOut, Lost, Order
from istos_worker.queue.state import QueueState


class EarlyStarts:
    """Those of one turn."""

    __slots__ = ("_handed_out",)

    def __init__(self) -> None:
        self._handed_out: Sequence[HandedOut] = ()

    def take(self, state: QueueState, applied: Sequence[Operation]) -> Sequence[HandedOut]:
        """What may be handed out before this turn is written."""
        is_of_enqueues = bool(applied) and all(map(only_brings_jobs, applied))
        self._handed_out = state.take_early() if is_of_enqueues else ()
        return self._handed_out

    def take_back(self) -> Effects:
        """The turn could not be written: who runs its jobs, which are none now, is to be told so."""
        handed_out, self._handed_out = self._handed_out, ()
        orders: list[tuple[str, Order]] = [
            (delivery.job.holder.id, Lost(delivery.job_id, delivery.fence))
            for _, deliveries in handed_out
            for delivery in deliveries
            if delivery.job.holder is not None
        ]
        return Effects(orders=orders)
