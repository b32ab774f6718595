"""Memory that is free, but that the C library keeps in case it is wanted again. Knows glibc; does nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys

from supervisor.libc import libc


def give_back() -> None:
    """To the system (malloc_trim(3)). Takes a fraction of a millisecond for a small process."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library: musl keeps little
            libc().malloc_trim(0)
