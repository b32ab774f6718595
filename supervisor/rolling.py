"""Replace workers one at a time, new before old. Knows who is due; not how a generation came to be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.crew import Crew
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Rolling:
    """`target` is the generation all workers shall be of; `due` gives other reasons to go, or None."""

    crew: Crew
    due: Callable[[Worker, float], str | None]
    target: int = 1
    incoming: Worker | None = None
    outgoing: Worker | None = None
    reason: str = ""
    _outgoing_since: float = 0.0
    _lingering: list[Worker] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return self.incoming is None and self.outgoing is None

    @property
    def complete(self) -> bool:
        """No worker that stays is of another generation, and nothing is under way."""
        staying = [worker for worker in self.crew.workers if worker.stays]
        return self.incoming is None and all(worker.generation == self.target for worker in staying)

    def drop_incoming(self, reason: str) -> None:
        if self.incoming is not None and self.incoming in self.crew.workers:
            self.crew.retire(self.incoming, reason)
        self.incoming = None

    def settle(self, now: float) -> None:
        """Bring what is under way one step further."""
        alive = self.crew.workers
        incoming = self.incoming
        if incoming is not None and (incoming not in alive or incoming.stage is Stage.LEAVING):
            self.incoming = None
        elif incoming is not None and incoming.stage is Stage.READY:
            self._swap(incoming, now)
        self._lingering = [worker for worker in self._lingering if worker in alive]
        if self.outgoing is not None and self.outgoing not in alive:
            self.outgoing = None
        elif self.outgoing is not None and self._may_linger(now):
            self._lingering.append(self.outgoing)
            self.outgoing = None

    def _swap(self, incoming: Worker, now: float) -> None:
        self.incoming, incoming.replaces = None, None
        # As a rule the one it replaces. That one may have died meanwhile and its slot been filled again, or never
        # have become ready where a canary took its slot.
        for old in self.crew.staying(incoming.slot):
            if old is not incoming:
                self.outgoing, self._outgoing_since = old, now
                self.crew.retire(old, self.reason)
                self.crew.ledger.count("recycled")

    def _may_linger(self, now: float) -> bool:
        """Its place is taken, so what it finishes costs memory only; but not without bound."""
        patience_s = self.crew.ground.settings.timeouts.drain_s
        return now - self._outgoing_since > patience_s and len(self._lingering) < max(self.crew.wanted, 1)

    def begin(self, now: float) -> None:
        """The next replacement, if none is under way: another generation's first, then the oldest."""
        if not self.idle:
            return
        for worker in sorted(self.crew.ready(), key=lambda one: (one.generation == self.target, one.serial)):
            reason = self._reason(worker, now)
            if reason is not None and self.crew.ledger.history(worker.slot).not_before <= now:
                self._replace(worker, reason, now)
                return

    def _reason(self, worker: Worker, now: float) -> str | None:
        if worker.generation != self.target:
            return f"replaced by generation {self.target}"
        return self.due(worker, now)

    def _replace(self, worker: Worker, reason: str, now: float) -> None:
        zygote = self.crew.generations.loaded(self.target)
        if zygote is None:
            return
        extra = {"slot": worker.slot, "worker_pid": worker.pid, "reason": reason}
        log.info("replacing worker %d: %s", worker.slot, reason, extra=extra)
        self.reason = reason
        self.incoming = self.crew.spawn(worker.slot, zygote, now=now, replaces=worker)
