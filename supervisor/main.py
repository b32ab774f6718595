"""The way in. Imports little: the first processes are started before the supervisor loads its own parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor import early
from supervisor.settings import Settings
from supervisor.spawn import start_firstborn

if TYPE_CHECKING:
    from supervisor.hooks import Hooks


def run(settings: Settings, hooks: Hooks | None = None) -> int:
    """Supervise until stopped; returns the exit code of CONTRACT.md section 2.

    The fleet's signals are left blocked: what is left for the process to do is to exit.
    """
    early.hold_signals()
    firstborn = start_firstborn(settings)

    from supervisor.supervising import supervise

    return supervise(settings, hooks, firstborn)
