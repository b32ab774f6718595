"""Start a program with descriptors of ours. Knows posix_spawn; not what the program is."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass, replace

from supervisor.berth import Inherited
from supervisor.early import FLEET_SIGNALS
from supervisor.settings import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """`link` is our end of the socket pair, `stacks_fd` where its faulthandler writes to; `at` monotonic."""

    pid: int
    link: socket.socket
    stacks_fd: int
    at: float


def start(command: Command, place: Inherited) -> Started:
    """The fleet's signals are blocked in it until it has handlers. Raises OSError, and leaves nothing open."""
    ours, theirs = socket.socketpair()
    stacks_read, stacks_write = stack_pipe()
    try:
        with theirs:
            pid = _spawn(command, replace(place, link_fd=theirs.fileno(), stacks_fd=stacks_write))
    except OSError:
        ours.close()
        os.close(stacks_read)
        raise
    finally:
        os.close(stacks_write)
    return Started(pid=pid, link=ours, stacks_fd=stacks_read, at=time.monotonic())


def stack_pipe() -> tuple[int, int]:
    """Its writer never blocks: a dump must not hang because nobody reads."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _spawn(command: Command, inherited: Inherited) -> int:
    fds = {inherited.link_fd, inherited.board_fd, inherited.lifeline_fd, inherited.stacks_fd}
    environment = {**(os.environ if command.env is None else command.env), **inherited.to_env()}
    for fd in fds:
        os.set_inheritable(fd, True)
    try:
        return os.posix_spawnp(
            command.argv[0],
            command.argv,
            _without_systemd(environment),
            setsigmask=FLEET_SIGNALS,
            setsigdef=[signal.SIGPIPE],
        )
    finally:
        for fd in fds:
            os.set_inheritable(fd, False)


def _without_systemd(environment: dict[str, str]) -> dict[str, str]:
    """Only the main process speaks to systemd (sd_notify(3))."""
    ours = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    return {name: value for name, value in environment.items() if name not in ours}
