"""Start the zygote and the companion with descriptors of ours. Knows posix_spawn; not what they do.

Imports little: the first two processes take longest to get ready, so they are started before the
supervisor has loaded its other parts.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.berth import Berth, Inherited
from supervisor.board import Board
from supervisor.early import FLEET_SIGNALS
from supervisor.embryo import Embryo
from supervisor.settings import Command, Companion, Settings

FIRST_GENERATION = 1
_COMPANION_CELL = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all processes of a fleet hold.

    A zygote and all that it forks keep the lifeline's write end for as long as they live, the companion
    its read end: end-of-file says that no worker is left.
    """

    board: Board
    lifeline_read_fd: int
    lifeline_write_fd: int

    @classmethod
    def create(cls) -> Shared:
        read, write = os.pipe()
        return cls(board=Board.create(), lifeline_read_fd=read, lifeline_write_fd=write)

    def close(self) -> None:
        os.close(self.lifeline_read_fd)
        os.close(self.lifeline_write_fd)
        self.board.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """`link` is our end of the socket pair, `stacks_fd` where its faulthandler writes to; `at` monotonic."""

    pid: int
    link: socket.socket
    stacks_fd: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Firstborn:
    """An OSError in the place of a process is why it could not be started."""

    shared: Shared
    zygote: Started | OSError
    companion: Started | OSError | None


def start_firstborn(settings: Settings, embryo: Embryo | None = None) -> Firstborn:
    shared, companion = Shared.create(), settings.companion
    return Firstborn(
        shared=shared,
        companion=None
        if companion is None
        else _attempt(lambda: start_companion(companion, settings, shared, count=1)),
        zygote=_attempt(lambda: start_zygote(settings, shared, generation=FIRST_GENERATION, embryo=embryo)),
    )


def start_zygote(
    settings: Settings, shared: Shared, *, generation: int, embryo: Embryo | None = None
) -> Started:
    """From the embryo, if there is one and it lives. Raises OSError."""
    inherited = Inherited(
        board_fd=shared.board.fd,
        lifeline_fd=shared.lifeline_write_fd,
        generation=generation,
        supervisor_pid=os.getpid(),
        name=settings.name,
    )
    return _start(settings.zygote, inherited, embryo)


def start_companion(companion: Companion, settings: Settings, shared: Shared, *, count: int) -> Started:
    """For the `count`th time. Raises OSError."""
    berth = Berth(
        slot=0,
        count=1,
        generation=count,
        cell=_COMPANION_CELL,
        supervisor_pid=os.getpid(),
        name=settings.name,
        role=companion.title,
        drain_s=settings.timeouts.drain_s,
        stall_s=None,
    )
    inherited = Inherited(
        board_fd=shared.board.fd,
        lifeline_fd=shared.lifeline_read_fd,
        supervisor_pid=os.getpid(),
        name=settings.name,
        berth=berth.to_wire(),
    )
    return _start(companion.command, inherited)


def nonblocking_pipe() -> tuple[int, int]:
    """(read, write). For stacks: their writer must not hang because nobody reads."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _attempt(start: Callable[[], Started]) -> Started | OSError:
    try:
        return start()
    except OSError as error:
        return error


def _start(command: Command, inherited: Inherited, embryo: Embryo | None = None) -> Started:
    """The fleet's signals are blocked in it until it has handlers. Raises OSError, and leaves nothing open."""
    ours, theirs = socket.socketpair()
    stacks_read, stacks_write = nonblocking_pipe()
    try:
        with theirs:
            placed = replace(inherited, link_fd=theirs.fileno(), stacks_fd=stacks_write)
            pid = _spawn(command, placed, embryo)
    except OSError:
        ours.close()
        os.close(stacks_read)
        raise
    finally:
        os.close(stacks_write)
    return Started(pid=pid, link=ours, stacks_fd=stacks_read, at=time.monotonic())


def _spawn(command: Command, inherited: Inherited, embryo: Embryo | None) -> int:
    fds = inherited.fds()
    environment = _without_systemd(
        {**(os.environ if command.env is None else command.env), **inherited.to_env()}
    )
    if embryo is not None:
        try:
            return embryo.grow(environment, fds)
        except OSError:  # it has died: another one will say why
            embryo.abandon()  # now, since whoever reaps everything here would free its pid
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
