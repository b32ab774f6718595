"""One worker as the supervisor sees it. A record; decisions are the crew's."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from dataclasses import dataclass, field

from supervisor.generations import Zygote
from supervisor.orders import Drain, HandBack, Message, Order, to_wire
from supervisor.stacks import StackPipe
from supervisor.wire import Channel


class Stage(enum.Enum):
    BOOTING = "booting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """`pid` is None until the zygote says it forked; times are monotonic."""

    serial: int
    slot: int
    cell: int
    zygote: Zygote
    stacks: StackPipe
    ordered_at: float = 0.0
    channel: Channel = field(init=False)
    pid: int | None = None
    stage: Stage = Stage.BOOTING
    ready_at: float | None = None
    replaces: Worker | None = None
    leave_reason: str | None = None
    kill_at: float | None = None
    killed_because: str | None = None
    retire_reason: str | None = None
    deaf_since: float | None = None
    stacks_asked_at: float | None = None
    is_canary: bool = False
    last_words: str | None = None
    unacknowledged: dict[int, Message] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        return self.zygote.generation

    @property
    def stays(self) -> bool:
        return self.stage is not Stage.LEAVING

    @property
    def on_trial(self) -> bool:
        """If it fails, the worker it was to replace goes on."""
        return self.ready_at is None and (self.is_canary or self.replaces is not None)

    def tell(self, order: Order) -> None:
        self.channel.send(to_wire(order))

    def leave(self, reason: str, kill_at: float | None) -> None:
        self.stage = Stage.LEAVING
        self.leave_reason = self.leave_reason or reason
        if kill_at is not None and (self.kill_at is None or kill_at < self.kill_at):
            self.kill_at = kill_at

    def drain(self, *, deadline_s: float | None, reason: str, kill_at: float | None) -> None:
        self.leave(reason, kill_at)
        self.tell(Drain(deadline_s=deadline_s, reason=reason))

    def hand_back(self, *, reason: str, kill_at: float) -> None:
        self.leave(reason, kill_at)
        self.tell(HandBack(reason=reason))

    def ask_for_stacks(self) -> None:
        """Threads through faulthandler at once, tasks when (and if) the loop answers."""
        self.signal(signal.SIGUSR1)
        self.channel.send({"t": "stacks"})

    def kill(self, because: str) -> None:
        if self.killed_because is None:
            self.killed_because = because
        self.signal(signal.SIGKILL)

    def signal(self, signum: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def ready_for_s(self, now: float) -> float | None:
        return None if self.ready_at is None else now - self.ready_at
