"""A picture of the fleet at one moment, for people, metrics and the control socket."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """`stage`: booting, ready or leaving. `private_bytes` None: not measured, or it may not be looked at."""

    slot: int
    pid: int | None
    generation: int
    stage: str
    age_s: float
    done: int
    busy: int
    slots: int
    serving: bool
    label: str
    held: tuple[str, ...]
    private_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionStatus:
    pid: int | None
    ready: bool
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counted since the supervisor started; `done` by workers that are there and by those that are gone."""

    done: int = 0
    deaths: int = 0
    crashes: int = 0
    recycled: int = 0
    stalls: int = 0
    reloads: int = 0
    reload_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`state`: starting, running, quiet, reloading or stopping; a reload goes on while the fleet is `quiet`."""

    name: str
    pid: int
    state: str
    quiet: bool
    generation: int
    procs: int
    uptime_s: float
    workers: tuple[WorkerStatus, ...]
    companion: CompanionStatus | None
    totals: Totals
    last_reload_error: str | None

    @property
    def ready(self) -> bool:
        """Somebody is ready and serves (or nobody is wanted), and nobody told the fleet to stop or be quiet."""
        serving = [worker for worker in self.workers if worker.stage == "ready" and worker.serving]
        companion_ready = self.companion is None or self.companion.ready
        is_at_work = self.state in ("running", "reloading") and not self.quiet
        return is_at_work and len(serving) >= min(self.procs, 1) and companion_ready

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), "ready": self.ready}
