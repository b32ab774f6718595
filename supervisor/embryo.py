"""A zygote's program that is started before anyone has read what it is to do: it imports meanwhile. Knows one process
and the socket to it; no settings. Imports little, for the same reason.
"""

import json
import os
import signal
import socket

from supervisor.early import FLEET_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE = "SUPERVISOR_EMBRYO"


class Embryo:
    """`grow` makes it what a process is that was started then, with that environment and those descriptors."""

    def __init__(self, argv: "tuple[str, ...]") -> None:
        """Starts the program, the fleet's signals blocked in it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                theirs.set_inheritable(True)
                self.pid = os.posix_spawn(
                    argv[0],
                    argv,
                    {**os.environ, _VARIABLE: str(theirs.fileno())},
                    setsigmask=FLEET_SIGNALS,
                    setsigdef=[signal.SIGPIPE],
                )
        except OSError:
            ours.close()
            raise
        self._link: socket.socket | None = ours

    def grow(self, env: "Mapping[str, str]", fds: "Sequence[int]") -> int:
        """Its pid. Raises OSError when it is no longer there."""
        link = self._link
        if link is None:
            raise ProcessLookupError("it was told what to do already, or abandoned")
        told = json.dumps(dict(env)).encode()
        socket.send_fds(link, [told[:1]], fds)
        link.sendall(told[1:])
        link.close()
        self._link = None
        return self.pid

    def abandon(self) -> None:
        """Ends it, unless it has grown. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def grow_up() -> "list[int]":
    """In that program: returns when it has its environment, with its descriptors; none and at once where it was
    started the usual way. Does not return in one that was abandoned."""
    fd = os.environ.get(_VARIABLE)
    if fd is None:
        return []
    from supervisor.titles import reserve_room

    reserve_room()
    with socket.socket(fileno=int(fd)) as link:
        told, fds, _, _ = socket.recv_fds(link, 1, 8)
        while chunk := link.recv(1 << 16):
            told += chunk
    if not told:
        os._exit(0)
    os.environ.clear()
    os.environ.update(json.loads(told))
    return fds
