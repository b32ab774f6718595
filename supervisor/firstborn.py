"""The companion and the first zygote, started before the supervisor has even imported its own parts.

They take longest to get ready, so what the supervisor imports meanwhile costs no time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from supervisor.berth import Inherited
from supervisor.board import Board
from supervisor.places import companion_place, zygote_place
from supervisor.settings import Command, Settings
from supervisor.spawn import Started, start

FIRST_GENERATION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Firstborn:
    """An OSError in the place of a process is why it could not be started."""

    board: Board
    lifeline_read_fd: int
    lifeline_write_fd: int
    zygote: Started | OSError
    companion: Started | OSError | None


def start_firstborn(settings: Settings) -> Firstborn:
    board = Board.create()
    read, write = os.pipe()
    return Firstborn(
        board=board,
        lifeline_read_fd=read,
        lifeline_write_fd=write,
        companion=_companion(settings, board.fd, read),
        zygote=_zygote(settings, board.fd, write),
    )


def _zygote(settings: Settings, board_fd: int, lifeline_fd: int) -> Started | OSError:
    place = zygote_place(settings, generation=FIRST_GENERATION, board_fd=board_fd, lifeline_fd=lifeline_fd)
    return _try(settings.zygote, place)


def _companion(settings: Settings, board_fd: int, lifeline_fd: int) -> Started | OSError | None:
    companion = settings.companion
    if companion is None:
        return None
    place = companion_place(
        settings, title=companion.title, start=1, board_fd=board_fd, lifeline_fd=lifeline_fd
    )
    return _try(companion.command, place)


def _try(command: Command, place: Inherited) -> Started | OSError:
    try:
        return start(command, place)
    except OSError as error:
        return error
