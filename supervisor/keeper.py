"""The companion process: first to start, last to stop, started again when it dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from supervisor import restart
from supervisor.exits import Exit, ExitCode, Verdict
from supervisor.generations import STACKS_TAKE_S
from supervisor.ground import Ground
from supervisor.orders import Drain, HandBack, Message, Order, to_wire
from supervisor.restart import SlotHistory
from supervisor.settings import UNREADY_LEAVES_WITHIN_S, Companion
from supervisor.spawn import Started, start_companion
from supervisor.stacks import StackPipe
from supervisor.wire import Channel

log = logging.getLogger(__name__)

_ASKED_BY_SIGNAL_S = 1.0


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Starts the companion, hears it, stops it. `conclude` is told when it is no use to go on.

    `fleet_stops`: workers leave and still need it, so it is kept alive; what it is sent by signal is
    no request of its own any more.
    """

    ground: Ground
    companion: Companion
    conclude: Callable[[Verdict], None]
    pid: int | None = None
    ready: bool = False
    starts: int = 0
    fleet_stops: bool = False
    unacknowledged: dict[int, Message] = field(default_factory=dict)
    _channel: Channel | None = None
    _stacks: StackPipe | None = None
    _history: SlotHistory = field(default_factory=SlotHistory)
    _started_at: float = 0.0
    _ready_at: float | None = None
    _stopping: bool = False
    _leaving: bool = False
    _kill_at: float | None = None

    @property
    def was_ready(self) -> bool:
        """Workers may start: it has been ready once (later they outlive its restarts)."""
        return self._ready_at is not None

    def adopt_first(self, first: Started | OSError) -> None:
        if isinstance(first, OSError):
            self._unborn(first, self.ground.loop.time())
        else:
            self._adopt(first)

    def step(self, now: float) -> None:
        if self.pid is None and not self._stopping and now >= self._history.not_before:
            self._start(now)
        boots = self.pid is not None and not self.ready and not self._leaving
        if boots and now - self._started_at > self._boot_s and self._kill_at is None:
            log.error("%s not ready within %g s", self.companion.title, self._boot_s)
            self.ask_for_stacks()
            self._kill_at = now + STACKS_TAKE_S
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def tell(self, order: Order) -> None:
        if self._channel is not None:
            self._channel.send(to_wire(order))

    def stop(self, now: float) -> None:
        """Everything else is gone: now it is its turn."""
        if not self._stopping:
            self._stopping = True
            if self.pid is not None:
                self._drain(now, "the fleet stops")

    def kill(self) -> None:
        self._stopping = True
        self._signal(signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        self._signal(signal.SIGUSR1)
        if self._channel is not None:
            self._channel.send({"t": "stacks"})

    def next_deadline(self, now: float) -> float:
        moments = [self._kill_at] if self._kill_at is not None else []
        if self.pid is None and not self._stopping:
            moments.append(self._history.not_before)
        return min((moment for moment in moments if moment > now), default=now + 3600.0)

    def forgive(self, gap_s: float) -> None:
        self._started_at += gap_s
        if self._kill_at is not None:
            self._kill_at += gap_s

    def exited(self, pid: int, exit_: Exit) -> bool:
        """False if `pid` was not it."""
        if pid != self.pid:
            return False
        now = self.ground.loop.time()
        if self._channel is not None:
            self._channel.read_to_end()
            self._channel.close()
        if self._stacks is not None:
            self._stacks.close()
        told_to = self._stopping or self._leaving
        extra = {"worker_pid": pid, "exit": str(exit_)}
        level = logging.INFO if told_to else logging.ERROR
        log.log(level, "%s gone: pid %s, %s", self.companion.title, pid, exit_, extra=extra)
        if not told_to:
            ready_for_s = now - self._ready_at if self.ready and self._ready_at is not None else None
            self._count_death(ready_for_s, now)
        self.pid, self.ready, self._leaving, self._kill_at = None, False, False, None
        self._channel = self._stacks = None
        self.ground.wake()  # this step's `now` is from before the death
        return True

    def _count_death(self, ready_for_s: float | None, now: float) -> None:
        policy = self.ground.settings.restarts
        if ready_for_s is not None:
            policy = replace(policy, max_delay_s=min(policy.max_delay_s, self.companion.longest_pause_s))
        self._history = restart.after_death(self._history, ready_for_s=ready_for_s, now=now, policy=policy)
        if restart.boots_exhausted(self._history, policy):
            reason = f"{self.companion.title} does not become ready"
            self.conclude(Verdict(exit_code=ExitCode.NO_BOOT, reason=reason))

    def _start(self, now: float) -> None:
        ground = self.ground
        try:
            started = start_companion(self.companion, ground.settings, ground.shared, count=self.starts + 1)
            self._adopt(started)
        except OSError as error:
            self._unborn(error, now)

    def _adopt(self, started: Started) -> None:
        loop, title = self.ground.loop, self.companion.title
        self._channel = Channel(started.link, on_message=self._heard, on_eof=self.ground.wake)
        self._channel.attach(loop)
        self._stacks = StackPipe(loop, started.stacks_fd, who=title)
        self.pid, self._started_at = started.pid, started.at
        self.starts += 1
        log.info("%s started", title, extra={"worker_pid": started.pid})

    def _unborn(self, error: OSError, now: float) -> None:
        title = self.companion.title
        log.error("%s could not be started: %s", title, error)
        self._count_death(None, now)

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"t": "ready"}:
                self.ready, self._ready_at = True, self.ground.loop.time()
                if not self._leaving:
                    self._kill_at = None
                log.info("%s ready", self.companion.title, extra={"worker_pid": self.pid})
            case {"t": "acknowledged", "id": id_}:
                self.unacknowledged.pop(id_, None)
            case {"t": "give_up", "text": text, "exit_code": exit_code}:
                reason = f"{self.companion.title} gave up"
                self.conclude(Verdict(exit_code=exit_code, reason=reason, text=text))
            case {"t": "signaled"}:
                self.ground.loop.call_later(_ASKED_BY_SIGNAL_S, self._asked_by_signal, self.pid)
            case {"t": "tasks", "text": text}:
                log.warning("tasks of %s:\n%s", self.companion.title, text, extra={"tasks": text})
        self.ground.wake()

    def _asked_by_signal(self, pid: int | None) -> None:
        """Somebody sent TERM to it alone (else the fleet stops): stopped in order and started again."""
        if pid == self.pid and not (self.fleet_stops or self._stopping or self._leaving):
            self._drain(self.ground.loop.time(), "asked to by a signal")

    def _drain(self, now: float, reason: str) -> None:
        self._leaving = True
        deadline_s = self.companion.stop_timeout_s
        if not self.ready:
            self.tell(HandBack(reason=reason))
            deadline_s = min(deadline_s, UNREADY_LEAVES_WITHIN_S)
        self.tell(Drain(deadline_s=deadline_s, reason=reason))
        self._kill_at = now + deadline_s
        self.ground.wake()

    def _signal(self, signum: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    @property
    def _boot_s(self) -> float:
        return self.ground.settings.timeouts.boot_s
