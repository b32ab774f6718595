"""What the supervisor's parts share: settings, the loop, the board, and a way to be looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.board import Board
from supervisor.settings import Settings
from supervisor.spawn import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """`wake` has the supervisor's loop take a step soon; `pid` is the supervisor's."""

    settings: Settings
    shared: Shared
    loop: asyncio.AbstractEventLoop
    pid: int
    wake: Callable[[], None]

    @property
    def board(self) -> Board:
        return self.shared.board
