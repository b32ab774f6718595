"""Who holds which deliveries, and whether they are alive. Knows tokens; not what becomes of a lost job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from istos_worker.queue.limits import check_text
from istos_worker.queue.records import Delivery, Job

if TYPE_CHECKING:
    from istos_worker.queue.parking import ParkedClaim

MAX_BURIED: Final = 1000
MAX_IDLE: Final = 1000


class Holder:
    """A worker process: its token, its last claim, the jobs it holds."""

    __slots__ = ("granted", "held", "id", "last_seq", "number", "parked", "tasks", "tokened", "up")

    def __init__(self, worker: str, number: int) -> None:
        self.id = worker
        self.number = number
        self.up = False
        self.tokened = False
        """It has had a token: without one now, it is missing rather than tokenless."""
        self.last_seq: int | None = None
        self.granted: list[Delivery] = []
        """What its last claim was answered with."""
        self.held: dict[int, Job] = {}
        self.parked: ParkedClaim | None = None
        self.tasks: frozenset[str] | None = frozenset()

    @property
    def is_missing(self) -> bool:
        return self.tokened and not self.up

    @property
    def is_idle(self) -> bool:
        return not self.up and not self.held and self.parked is None


class Holders:
    """All known holders, by id and by number. Idle ones are let go when there are many."""

    __slots__ = ("_buried", "_by_number", "_numbers", "_sweep_at", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[str, Holder] = {}
        self._by_number: dict[int, Holder] = {}
        self._buried: dict[str, None] = {}
        self._numbers = 0
        self._sweep_at = MAX_IDLE

    def get(self, worker: str) -> Holder | None:
        return self.by_id.get(worker)

    def numbered(self, number: int) -> Holder | None:
        return self._by_number.get(number)

    def ensure(self, worker: str) -> Holder:
        holder = self.by_id.get(worker)
        if holder is None:
            check_text("worker", worker)
            if len(self.by_id) >= self._sweep_at:
                self._sweep()
            self._numbers += 1
            holder = self.by_id[worker] = self._by_number[self._numbers] = Holder(worker, self._numbers)
        return holder

    def _sweep(self) -> None:
        for holder in [holder for holder in self.by_id.values() if holder.is_idle]:
            self.forget(holder)
        self._sweep_at = max(MAX_IDLE, 2 * len(self.by_id))

    def forget(self, holder: Holder) -> None:
        self.by_id.pop(holder.id, None)
        self._by_number.pop(holder.number, None)

    def bury(self, worker: str) -> Holder | None:
        """The process is dead for certain: a claim of its that is still under way must not be served."""
        self._buried[worker] = None
        if len(self._buried) > MAX_BURIED:
            del self._buried[next(iter(self._buried))]
        holder = self.by_id.get(worker)
        if holder is not None:
            self.forget(holder)
        return holder

    def is_buried(self, worker: str) -> bool:
        return worker in self._buried
