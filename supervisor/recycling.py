"""Who has grown too old or too large. Measures private memory; replaces nobody."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.crew import Crew
from supervisor.exits import ExitCode, Verdict
from supervisor.settings import Recycling
from supervisor.workers import Worker

log = logging.getLogger(__name__)

SAMPLES_ABOVE = 3
_MIB = 2**20
_PRIVATE = (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:")


@dataclass(slots=True)
class Samples:
    """Private memory of one worker; several in a row must be above the limit."""

    last: int = 0
    above: int = 0

    def add(self, size: int, limit: int | None) -> None:
        self.last = size
        self.above = self.above + 1 if limit is not None and size > limit else 0


@dataclass(slots=True, kw_only=True)
class Recycler:
    """Memory is what would be free without the worker: past peaks and shared pages count for nothing."""

    crew: Crew
    recycling: Recycling
    baseline: int | None = None
    samples: dict[int, Samples] = field(default_factory=dict)
    _next_at: float = 0.0

    def due(self, worker: Worker, now: float) -> str | None:
        """Why `worker` is to be replaced, or None."""
        limits, ready_for_s = self.recycling, worker.ready_for_s(now)
        if worker.retire_reason is not None:
            return worker.retire_reason
        if limits.max_lifetime_s is not None and (ready_for_s or 0.0) > limits.max_lifetime_s:
            return f"older than {limits.max_lifetime_s:g} s"
        samples = self.samples.get(worker.serial)
        if samples is not None and samples.above >= SAMPLES_ABOVE:
            return f"{samples.last / _MIB:.0f} MiB private memory, {SAMPLES_ABOVE} times above the limit"
        return None

    def measure(self, now: float) -> None:
        limit = self.recycling.max_memory_bytes
        if limit is None or now < self._next_at:
            return
        ready = self.crew.ready()
        if ready:
            self._next_at = now + self.recycling.measure_every_s
        self.samples = {worker.serial: self.samples.get(worker.serial, Samples()) for worker in ready}
        for worker in ready:
            size = self.size(worker)
            if size is not None:
                self._check_baseline(size, limit)
                self.samples[worker.serial].add(size, limit)

    def next_look(self, now: float) -> float:
        return self._next_at if self._next_at > now else now + 3600.0

    def size(self, worker: Worker) -> int | None:
        if worker.pid is None:
            return None
        with contextlib.suppress(OSError):
            return private_bytes(worker.pid)
        return None

    def _check_baseline(self, size: int, limit: int) -> None:
        if self.baseline is None:
            self.baseline = size
            if limit <= size:
                text = (
                    f"the memory limit of {limit / _MIB:.1f} MiB is below what an idle worker takes "
                    f"({size / _MIB:.1f} MiB private): every worker would be replaced for ever. "
                    f"Set it above {size * 2 / _MIB:.0f} MiB or so."
                )
                self.crew.ledger.conclude(
                    Verdict(exit_code=ExitCode.USAGE, reason="memory limit too low", text=text)
                )


def private_bytes(pid: int) -> int:
    """Raises OSError if the process is gone or may not be looked at."""
    try:
        data = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except FileNotFoundError:
        return _private_bytes_elsewhere(pid)
    return 1024 * sum(int(line.split()[1]) for line in data.splitlines() if line.startswith(_PRIVATE))


def _private_bytes_elsewhere(pid: int) -> int:
    import psutil  # 30 ms and 6 MB that Linux does without

    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error as error:
        raise OSError(f"memory of process {pid} is not readable") from error
