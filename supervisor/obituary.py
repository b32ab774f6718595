"""What is said of a dead worker. Reads the cgroup's count of out-of-memory kills."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.exits import Exit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obituary:
    """`expected`: it had been told to leave and did so with code 0. Sizes in bytes, times in seconds."""

    slot: int
    pid: int | None
    generation: int
    exit: Exit
    cause: str
    expected: bool
    age_s: float
    peak_memory_bytes: int
    done: int
    held: tuple[str, ...]
    label: str
    reason: str | None = None


def log_obituary(obituary: Obituary) -> None:
    """Stable keys for machines; one sentence with everything for people."""
    level = logging.INFO if obituary.expected else logging.ERROR
    held = ", ".join(obituary.held) or "nothing"
    log.log(
        level,
        "worker %d gone: pid %s, %s, peak memory %.0f MiB, age %.1f s, %d done, held %s",
        obituary.slot,
        obituary.pid,
        obituary.cause,
        obituary.peak_memory_bytes / 2**20,
        obituary.age_s,
        obituary.done,
        held,
        extra={
            "slot": obituary.slot,
            "worker_pid": obituary.pid,
            "generation": obituary.generation,
            "exit": str(obituary.exit),
            "cause": obituary.cause,
            "expected": obituary.expected,
            "peak_memory_bytes": obituary.peak_memory_bytes,
            "age_s": round(obituary.age_s, 3),
            "done": obituary.done,
            "held": list(obituary.held),
            "label": obituary.label,
        },
    )


class OomKills:
    """New out-of-memory kills in this cgroup since last asked; `read` gives the running total."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._last = read()

    def since_last(self) -> int:
        total = self._read()
        new, self._last = max(total - self._last, 0), total
        return new


def cgroup_oom_kills() -> int:
    """`oom_kill` of memory.events (cgroup v2) or memory.oom_control (v1); 0 where neither is."""
    for path in _event_files():
        try:
            text = path.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _event_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    root = Path("/sys/fs/cgroup")
    files = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [*files, root / "memory.events"]
