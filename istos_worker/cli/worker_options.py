"""The command line of `istos-worker`, read. Knows nothing of how it was read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from istos_worker.wire.settings import ZenohSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, environment and table as one value; names are the options', with their units."""

    targets: tuple[str, ...]
    procs: int
    concurrency: tuple[tuple[str | None, int], ...]
    queue: tuple[str, ...]
    network: ZenohSettings
    token: str | None
    embedded: bool
    data: str
    drain_timeout_s: float | None
    max_jobs: int | None
    max_jobs_jitter: int
    max_memory_bytes: int | None
    max_lifetime_s: float | None
    boot_timeout_s: float
    stall_timeout_s: float
    job_timeout_s: float | None
    solo: bool
    burst: bool
    reload: bool
    metrics: tuple[str, int] | None
    control: Path | None
    pidfile: Path | None
    log_level: str
    log_format: str
    check: bool
