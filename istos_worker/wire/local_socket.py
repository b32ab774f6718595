"""Sockets that are known by a name and reached by the processes of one user on one machine only. Knows no asyncio.

Linux' abstract sockets: no file that has to be put somewhere and is left behind by a kill, and a network namespace
(a container) has its own.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys

SWITCH = "ISTOS_WORKER_LOCAL_SOCKET"
"""An environment variable. `off`: everything goes over the mesh."""

_NAME = re.compile(r"[0-9a-f]{32}")
_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid (unix(7))."""
_NOBODY = 65534
"""What the kernel says of everybody who has no number in this user namespace."""


def bound_to(name: str) -> socket.socket:
    """Raises OSError where there are no such sockets."""
    made, address = _socket_for(name)
    try:
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def connected_to(name: str) -> socket.socket:
    """Does not block. Raises OSError when nobody listens there (BlockingIOError: too many wait to be let in), or
    somebody else's process does."""
    made, address = _socket_for(name)
    try:
        made.connect(address)
        if not is_same_user(made):
            raise PermissionError("somebody else's process listens there")
    except BaseException:
        made.close()
        raise
    return made


def is_same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end is known to run as the same user as this one."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.geteuid() and uid != _NOBODY)


def _socket_for(name: str) -> tuple[socket.socket, str]:
    if sys.platform != "linux":
        raise OSError("this system has no abstract sockets")
    if os.environ.get(SWITCH, "").lower() in ("off", "no", "false", "0"):
        raise OSError(f"{SWITCH} switches local sockets off")
    # The name comes from the mesh: it can be nothing but one of ours.
    if not _NAME.fullmatch(name):
        raise OSError(f"not the name of a local socket: {name!r:.80}")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made, f"\0istos-worker/{name}"
