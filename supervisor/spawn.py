"""Start a program with descriptors of ours. Knows posix_spawn; not what the program is."""

from __future__ import annotations

import os
import signal

from supervisor.berth import Inherited
from supervisor.early import FLEET_SIGNALS
from supervisor.settings import Command


def spawn(command: Command, inherited: Inherited) -> int:
    """Its pid. The fleet's signals are blocked in it until it has handlers. Raises OSError."""
    fds = {inherited.link_fd, inherited.board_fd, inherited.lifeline_fd, inherited.stacks_fd} - {-1}
    environment = _without_systemd(
        {**(os.environ if command.env is None else command.env), **inherited.to_env()}
    )
    for fd in fds:
        os.set_inheritable(fd, True)
    try:
        return os.posix_spawnp(
            command.argv[0],
            command.argv,
            environment,
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
