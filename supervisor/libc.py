"""The C library's own functions, for what Python has no call for. Linux only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes


@functools.cache
def libc() -> ctypes.CDLL:
    """Made once, before a zygote forks: each making creates a class, which workers would not share."""
    import ctypes  # 5 ms and 1 MB that only this needs

    return ctypes.CDLL(None)
