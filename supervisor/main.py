"""The way in. Imports little: the first processes are started before the supervisor loads its own parts."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from supervisor import early, logs
from supervisor.exits import ExitCode
from supervisor.pidfile import Pidfile
from supervisor.settings import Settings
from supervisor.spawn import start_firstborn

if TYPE_CHECKING:
    from supervisor.embryo import Embryo
    from supervisor.hooks import Hooks

log = logging.getLogger(__name__)


def run(settings: Settings, hooks: Hooks | None = None, embryo: Embryo | None = None) -> int:
    """Supervise until stopped; returns the exit code of CONTRACT.md section 2. `embryo`: the first zygote, if it was
    started before the settings were known.

    The fleet's signals are left blocked: what is left for the process to do is to exit.
    """
    early.hold_signals()
    with contextlib.ExitStack() as stack:
        stack.enter_context(logs.shielded())
        try:
            if settings.pidfile is not None:  # before anything else: what runs already must not be disturbed
                stack.enter_context(Pidfile(settings.pidfile))
        except OSError as refused:
            log.error("not started: %s %s: %s", settings.names.pidfile, settings.pidfile, refused.strerror)
            return ExitCode.UNEXPECTED
        firstborn = start_firstborn(settings, embryo)

        from supervisor.supervising import supervise

        return supervise(settings, hooks, firstborn)
