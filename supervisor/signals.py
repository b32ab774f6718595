"""Signals of the supervisor: what each asks for. Handlers record; the loop decides."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field

from supervisor.ladder import Ladder, Rung, climb, fresh


class Ask(enum.Enum):
    RELOAD = enum.auto()
    STACKS = enum.auto()
    TOGGLE_QUIET = enum.auto()
    ONE_MORE = enum.auto()
    ONE_FEWER = enum.auto()


_ASKS = {
    signal.SIGHUP: Ask.RELOAD,
    signal.SIGUSR1: Ask.STACKS,
    signal.SIGUSR2: Ask.TOGGLE_QUIET,
    signal.SIGTTIN: Ask.ONE_MORE,
    signal.SIGTTOU: Ask.ONE_FEWER,
}
# Twice the same within a second is one instruction for those that may reach us by two ways (the
# group and a parent that passes it on); scaling is counted, so that `kill -TTIN` twice is two.
_ONCE_A_SECOND = frozenset({signal.SIGHUP, signal.SIGUSR2})


@dataclass(slots=True)
class Signals:
    """Keeps the ladder; every signal gives an `Ask`, a rung, or nothing."""

    ladder: Ladder = field(default_factory=Ladder)

    def heard(self, signum: int, now: float) -> Ask | Rung | None:
        ask = _ASKS.get(signal.Signals(signum))
        if ask is None:
            before = self.ladder.rung
            self.ladder = climb(self.ladder, signum, now)
            return self.ladder.rung if self.ladder.rung > before else None
        if signum in _ONCE_A_SECOND:
            self.ladder, counts = fresh(self.ladder, signum, now)
            return ask if counts else None
        return ask
