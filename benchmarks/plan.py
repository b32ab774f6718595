"""How big a run is. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    repeat: int = 3
    procs: int = 2
    slots: int = 8
    seconds: float = 4.0
    """About how long one throughput measurement of a system lasts."""
    cap_s: float = 90.0
    """After this a measurement is broken off as unfinished."""
    stall_s: float = 15.0
    """No job for so long: what is missing is lost."""
    latency_jobs: int = 300
    crash_cap_s: float = 40.0
    graceful_job_s: float = 3.0
    restart_wait_s: float = 40.0
    backlogs: tuple[int, ...] = (1_000, 100_000)
    scaling: tuple[int, ...] = (1, 2, 4)
    scale: float = 1.0
    """Multiplies the numbers of jobs; below 1 only to try the harness out."""

    def __post_init__(self) -> None:
        for name in ("repeat", "procs", "slots", "seconds", "scale"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")

    def jobs(
        self, per_s: float, *, seconds: float | None = None, least: int = 200, most: int = 200_000
    ) -> int:
        wanted = per_s * (seconds or self.seconds)
        return max(20, int(max(least, min(most, wanted)) * self.scale))


def quick() -> Plan:
    return Plan(
        repeat=1,
        seconds=1.5,
        cap_s=45,
        crash_cap_s=5,
        restart_wait_s=6,
        backlogs=(1_000, 20_000),
    )
