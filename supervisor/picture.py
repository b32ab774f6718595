"""Takes the status of a fleet from its parts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

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
        """With every worker's memory, which the kernel adds up page by page: milliseconds for a large one."""
        return self._of([self.recycler.size(worker) for worker in self._shown()])

    def glance(self) -> Status:
        """Without memory: for those who look all the time."""
        return self._of([None] * len(self.crew.workers))

    def _shown(self) -> list[Worker]:
        return sorted(self.crew.workers, key=lambda worker: (worker.slot, worker.serial))

    def _of(self, sizes: list[int | None]) -> Status:
        ground = self.crew.ground
        now = time.monotonic()
        workers = tuple(
            self._worker(worker, now, size) for worker, size in zip(self._shown(), sizes, strict=True)
        )
        totals = self.crew.ledger.totals
        return Status(
            name=ground.settings.name,
            pid=ground.pid,
            state=self.state,
            quiet=self.crew.quiet,
            generation=self.crew.trusted,
            procs=self.crew.wanted,
            uptime_s=now - self._started_at,
            workers=workers,
            companion=self._companion(),
            totals=replace(totals, done=totals.done + sum(worker.done for worker in workers)),
            last_reload_error=self.reloading.last_error,
        )

    def _worker(self, worker: Worker, now: float, size: int | None) -> WorkerStatus:
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
            private_bytes=size,
        )

    def _companion(self) -> CompanionStatus | None:
        if self.keeper is None:
            return None
        return CompanionStatus(
            pid=self.keeper.pid, ready=self.keeper.ready, restarts=max(self.keeper.starts - 1, 0)
        )
