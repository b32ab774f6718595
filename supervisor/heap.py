"""Memory that is free, but that the C library keeps in case it is wanted again. Knows glibc; does nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys


def give_back() -> None:
    """To the system (malloc_trim(3)). Takes a fraction of a millisecond for a small process."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(AttributeError):  # another C library: musl keeps little
            ctypes.CDLL(None).malloc_trim(0)
