"""The C library's own functions, for what Python has no call for. Linux only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes


@functools.cache
def libc() -> ctypes.CDLL:
    """Made once, and before a zygote forks: each making creates a class, which workers would not share. The first one
    imports ctypes (5 ms)."""
    import ctypes

    return ctypes.CDLL(None)
