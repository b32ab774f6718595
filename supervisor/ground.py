"""What the supervisor's parts share: settings, the loop, the board, and a way to be looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.board import Board
from supervisor.firstborn import Firstborn
from supervisor.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """`wake` has the supervisor's loop take a step soon; `pid` is the supervisor's."""

    settings: Settings
    firstborn: Firstborn
    loop: asyncio.AbstractEventLoop
    pid: int
    wake: Callable[[], None]

    @property
    def board(self) -> Board:
        return self.firstborn.board
