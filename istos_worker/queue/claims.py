"""Handing out jobs: at once, or to claims that wait (ARCHITECTURE.md, decision 3). Knows who asks; not what becomes
of a delivery."""

from __future__ import annotations

from istos_worker.queue.holders import Holder
from istos_worker.queue.leases import Leases
from istos_worker.queue.ledger import Ledger
from istos_worker.queue.limits import MAX_REPLY_BYTES
from istos_worker.queue.parking import ParkedClaim, ParkedClaims
from istos_worker.queue.ready import Picker
from istos_worker.queue.records import (
    PARKED,
    ClaimRequest,
    Delivery,
    Instant,
    Parked,
)


class Claims:
    __slots__ = ("_leases", "_ledger", "parked")

    def __init__(self, ledger: Ledger, leases: Leases, parked: ParkedClaims) -> None:
        self._ledger = ledger
        self._leases = leases
        self.parked = parked

    def claim(self, request: ClaimRequest, now: Instant) -> list[Delivery] | Parked:
        holder: Holder | None = None
        if request.worker is not None:
            if self._leases.holders.is_buried(request.worker):
                return []
            holder = self._leases.holders.ensure(request.worker)
            holder.tasks = request.tasks
            self._leases.sign_of_life(holder, self._ledger.settings.grace_s, now)
            if (repeated := self._repeated(holder, request.seq)) is not None:
                return repeated
        if request.n < 1:
            return []
        if self._ledger.fed and self.parked:
            self.serve(now)
        deliveries = self._take(request, holder, now)
        if holder is not None and request.seq is not None:
            holder.last_seq, holder.granted = request.seq, deliveries
        if deliveries or request.waiter is None or request.wait_s <= 0:
            return deliveries
        self.parked.park(request, request.waiter, holder, now.mono + request.wait_s)
        return PARKED

    def _repeated(self, holder: Holder, seq: int | None) -> list[Delivery] | None:
        """The answer to a claim that was heard before; None when this one is new. A parked claim of the same
        worker is over either way: a repeat takes its place, a newer one ends it."""
        last = holder.last_seq
        if seq is not None and last is not None and seq < last:
            return []
        parked = holder.parked
        if parked is not None:
            self.parked.leave(parked)
            self._ledger.answer(parked.waiter, [])
            return None
        if seq is None or seq != last:
            return None
        return [
            delivery
            for delivery in holder.granted
            if delivery.job.holder is holder and delivery.job.fence == delivery.fence
        ]

    def _take(self, request: ClaimRequest, holder: Holder | None, now: Instant) -> list[Delivery]:
        if self._ledger.paused:
            return []
        picker = self._ledger.ready.picker(request.tasks)
        return [] if picker is None else self._hand_out(picker, request.n, request, holder, now)

    def _hand_out(
        self, picker: Picker, n: int, request: ClaimRequest, holder: Holder | None, now: Instant
    ) -> list[Delivery]:
        lease_s = self._ledger.settings.lease_s if request.lease_s is None else request.lease_s
        claim_seq = request.seq or 0
        hold = self._leases.hold
        deliveries: list[Delivery] = []
        room = MAX_REPLY_BYTES
        for job in picker.taken():
            deliveries.append(hold(job, holder, claim_seq, lease_s, now))
            room -= len(job.body)
            if len(deliveries) >= n or room <= 0:
                break
        self._ledger.totals.delivered += len(deliveries)
        return deliveries

    # waiting claims

    def serve(self, now: Instant) -> None:
        """Gives what has become ready to the claims that wait, oldest first, evenly."""
        self._ledger.fed = False
        if self._ledger.paused:
            return
        for tasks in list(self.parked.groups):
            self._serve_group(tasks, now)

    def _serve_group(self, tasks: frozenset[str] | None, now: Instant) -> None:
        group = self.parked.groups.get(tasks)
        while group:
            picker = self._ledger.ready.picker(tasks)
            if picker is None:
                return
            share = -(-len(picker) // len(group))
            if not self._serve_one(next(iter(group.values())), picker, max(1, share), now):
                return

    def _serve_one(self, parked: ParkedClaim, picker: Picker, share: int, now: Instant) -> bool:
        request, holder = parked.request, parked.holder
        deliveries = self._hand_out(picker, min(request.n, share), request, holder, now)
        if not deliveries:
            return False
        self.parked.leave(parked)
        if holder is not None and request.seq is not None:
            holder.last_seq, holder.granted = request.seq, deliveries
        self._ledger.hand_out(parked.waiter, deliveries)
        return True

    def expire(self, now: Instant) -> None:
        """Answers the claims whose patience is over."""
        while (parked := self.parked.pop_due(now.mono)) is not None:
            self.parked.leave(parked)
            self._ledger.answer(parked.waiter, [])
