"""What the supervisor's parts share: settings, the loop, the board, and a way to be looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.board import Board
from supervisor.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """`wake` has the supervisor's loop take a step soon; `pid` is the supervisor's."""

    settings: Settings
    board: Board
    loop: asyncio.AbstractEventLoop
    lifeline_fd: int
    pid: int
    wake: Callable[[], None]
