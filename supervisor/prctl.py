"""The two Linux process attributes Python has no call for. Does nothing elsewhere."""

from __future__ import annotations

import sys

from supervisor.libc import libc

ADOPTS_ORPHANS = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Orphans below this process become its children (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parent_death(signum: int) -> None:
    """Sent each time the parent of this process dies, also a later, adoptive one."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        libc().prctl(option, value, 0, 0, 0)
