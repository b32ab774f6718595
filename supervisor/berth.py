"""What a process is told of its place in the fleet when it is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

BERTH_VARIABLE = "SUPERVISOR_BERTH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """A worker's (or the companion's) place. Times in seconds; `stall_s` None: never stalled."""

    slot: int
    count: int
    generation: int
    cell: int
    supervisor_pid: int
    name: str
    role: str = "worker"
    drain_s: float
    stall_s: float | None
    max_units: int | None = None

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> Berth:
        return cls(**message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """Descriptors and facts an exec'd process finds in its environment."""

    link_fd: int = -1
    board_fd: int
    lifeline_fd: int
    stacks_fd: int = -1
    generation: int = 0
    supervisor_pid: int
    name: str
    berth: Mapping[str, Any] | None = None

    def fds(self) -> tuple[int, ...]:
        return (self.link_fd, self.board_fd, self.lifeline_fd, self.stacks_fd)

    def to_env(self) -> dict[str, str]:
        return {BERTH_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def take(cls, fds: Sequence[int] = ()) -> Inherited:
        """Read and remove it, so that nothing this process starts takes it, or the descriptors, for its own.
        `fds`: where they are, if they came another way than by inheritance; in the order of `fds()`."""
        try:
            text = os.environ.pop(BERTH_VARIABLE)
        except KeyError:
            raise RuntimeError(
                f"{BERTH_VARIABLE} is not set: this program is started by a supervisor"
            ) from None
        inherited = cls(**json.loads(text))
        if fds:
            link, board, lifeline, stacks = fds
            inherited = replace(
                inherited, link_fd=link, board_fd=board, lifeline_fd=lifeline, stacks_fd=stacks
            )
        for fd in inherited.fds():
            os.set_inheritable(fd, False)
        return inherited
