"""What a fleet is told at its start. Knows limits and units; starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNREADY_LEAVES_WITHIN_S = 2.0  # it holds nothing worth waiting for
MAX_PROCS = 400  # two descriptors each, and 1024 is a common limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to exec; `env` None inherits the supervisor's."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("argv must name a program")


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A process that starts before the workers and stops after them. All of them wait for it, so one that was
    ready is started again after `longest_pause_s` at most, however often it dies."""

    command: Command
    stop_timeout_s: float = 10.0
    longest_pause_s: float = 0.5
    takes_messages: bool = True
    title: str = "owner"

    def __post_init__(self) -> None:
        _positive("stop_timeout_s", self.stop_timeout_s)
        _positive("longest_pause_s", self.longest_pause_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds; `stall_s` None never kills a blocked worker (for debuggers)."""

    drain_s: float = 25.0
    boot_s: float = 60.0
    stall_s: float | None = 30.0
    hand_back_s: float = 5.0

    def __post_init__(self) -> None:
        if self.drain_s < 0:
            raise ValueError(f"drain_s must not be negative, got {self.drain_s!r}")
        _positive("boot_s", self.boot_s)
        _positive("stall_s", self.stall_s)
        _positive("hand_back_s", self.hand_back_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """When a worker is replaced by a fresh one; None means never."""

    max_units: int | None = None
    max_units_jitter: int = 0
    max_memory_bytes: int | None = None
    max_lifetime_s: float | None = None
    measure_every_s: float = 5.0

    def __post_init__(self) -> None:
        _positive("measure_every_s", self.measure_every_s)
        _positive("max_units", self.max_units)
        _positive("max_memory_bytes", self.max_memory_bytes)
        _positive("max_lifetime_s", self.max_lifetime_s)
        if self.max_units_jitter < 0:
            raise ValueError(f"max_units_jitter must not be negative, got {self.max_units_jitter!r}")

    def draw_max_units(self) -> int | None:
        """One worker's own limit, drawn anew each time so that not all are replaced at once; None: never."""
        if self.max_units is None or self.max_units_jitter == 0:
            return self.max_units
        import random  # half a megabyte: most supervisors need none of it

        return self.max_units + random.randint(0, self.max_units_jitter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How deaths are answered; the defaults are CONTRACT.md section 6, points 5 and 6."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    health_s: float = 60.0
    boot_rounds: int = 5
    crashes: int = 10

    def __post_init__(self) -> None:
        for name in ("first_delay_s", "max_delay_s", "health_s", "boot_rounds", "crashes"):
            _positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the people who run the program know these settings by: for messages."""

    pidfile: str = "pidfile"
    control: str = "control socket"
    endpoint: str = "endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `supervisor.main.run` needs."""

    procs: int
    zygote: Command
    companion: Companion | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    recycling: Recycling = field(default_factory=Recycling)
    restarts: Restarts = field(default_factory=Restarts)
    name: str = "istos-worker"
    pidfile: Path | None = None
    control: Path | None = None
    endpoint: tuple[str, int] | None = None
    burst: bool = False
    names: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        if not 0 <= self.procs <= MAX_PROCS:
            raise ValueError(f"procs must be between 0 and {MAX_PROCS}, got {self.procs!r}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
