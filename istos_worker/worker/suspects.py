"""Jobs that ran when two workers died: at most one of them runs in a process at a time. Otherwise a job that kills
its workers would come back with the same neighbours each time, and take them to the dead letters with it. Pure."""

from __future__ import annotations

from typing import Protocol

_CRASHES = 2
"""The first death may be anybody's: all that ran start again at once. After the second they are kept apart."""
RETURN_S = 0.5
"""How long a suspect stays away from a process that has one already."""


class Crashed(Protocol):
    @property
    def crashes(self) -> int: ...


class Suspects:
    """One for all queues of a process."""

    def __init__(self) -> None:
        self._here: Crashed | None = None

    def admit(self, delivery: Crashed) -> bool:
        """False: it must not run here now. Of one that is admitted, `left` must be told."""
        if delivery.crashes < _CRASHES:
            return True
        if self._here is not None:
            return False
        self._here = delivery
        return True

    def left(self, delivery: Crashed) -> None:
        if self._here is delivery:
            self._here = None
