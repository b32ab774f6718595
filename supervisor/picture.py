"""Takes the status of a fleet from its parts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from supervisor.crew import Crew
from supervisor.keeper import Keeper
from supervisor.recycling import Recycler
from supervisor.reloading import Reloading
from supervisor.status import CompanionStatus, Status, WorkerStatus
from supervisor.stopping import Stopping
from supervisor.workers import Worker


@dataclass(slots=True, kw_only=True)
class Picture:
    """Reads, never changes."""

    crew: Crew
    keeper: Keeper | None
    reloading: Reloading
    stopping: Stopping
    recycler: Recycler
    _started_at: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> str:
        if self.stopping.under_way:
            return "stopping"
        if not self.crew.ledger.ever_ready and self.crew.wanted > 0:
            return "starting"
        if self.reloading.under_way:
            return "reloading"
        return "quiet" if self.crew.quiet else "running"

    def take(self) -> Status:
        ground = self.crew.ground
        now = time.monotonic()
        workers = sorted(self.crew.workers, key=lambda worker: (worker.slot, worker.serial))
        return Status(
            name=ground.settings.name,
            pid=ground.pid,
            state=self.state,
            generation=self.crew.trusted,
            procs=self.crew.wanted,
            uptime_s=now - self._started_at,
            workers=tuple(self._worker(worker, now) for worker in workers),
            companion=self._companion(),
            totals=self.crew.ledger.totals,
            last_reload_error=self.reloading.last_error,
        )

    def _worker(self, worker: Worker, now: float) -> WorkerStatus:
        figures = self.crew.ground.board.read(worker.cell)
        return WorkerStatus(
            slot=worker.slot,
            pid=worker.pid,
            generation=worker.generation,
            stage=worker.stage.value,
            age_s=now - worker.ordered_at,
            done=figures.done,
            busy=figures.busy,
            slots=figures.slots,
            serving=figures.serving,
            label=figures.label,
            held=figures.held,
            private_bytes=self.recycler.size(worker),
        )

    def _companion(self) -> CompanionStatus | None:
        if self.keeper is None:
            return None
        return CompanionStatus(
            pid=self.keeper.pid, ready=self.keeper.ready, restarts=max(self.keeper.starts - 1, 0)
        )
