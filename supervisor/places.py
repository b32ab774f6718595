"""What a zygote and a companion are told when they are exec'd. Pure."""

from __future__ import annotations

import os

from supervisor.berth import Berth, Inherited
from supervisor.settings import Settings

COMPANION_CELL = 0


def zygote_place(settings: Settings, *, generation: int, board_fd: int, lifeline_fd: int) -> Inherited:
    """`lifeline_fd` is the write end: it, and all that it forks, hold it for as long as they live."""
    return Inherited(
        board_fd=board_fd,
        lifeline_fd=lifeline_fd,
        generation=generation,
        supervisor_pid=os.getpid(),
        name=settings.name,
    )


def companion_place(
    settings: Settings, *, title: str, start: int, board_fd: int, lifeline_fd: int
) -> Inherited:
    """`lifeline_fd` is the read end: end-of-file says that no worker is left. `start` counts from 1."""
    berth = Berth(
        slot=0,
        count=1,
        generation=start,
        cell=COMPANION_CELL,
        supervisor_pid=os.getpid(),
        name=settings.name,
        role=title,
        drain_s=settings.timeouts.drain_s,
        stall_s=None,
    )
    return Inherited(
        board_fd=board_fd,
        lifeline_fd=lifeline_fd,
        supervisor_pid=os.getpid(),
        name=settings.name,
        berth=berth.to_wire(),
    )
