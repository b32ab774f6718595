"""Zygotes: one a generation. Starts them, hears from them, starts a lost one again; forks through them."""

from __future__ import annotations

import enum
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor import restart
from supervisor.exits import Exit, Signaled
from supervisor.ground import Ground
from supervisor.restart import SlotHistory
from supervisor.spawn import FIRST_GENERATION, Started, start_zygote
from supervisor.stacks import StackPipe
from supervisor.wire import Channel

log = logging.getLogger(__name__)

STACKS_TAKE_S = 1.0


class Phase(enum.Enum):
    IMPORTING = "importing"
    LOADED = "loaded"
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True, kw_only=True, eq=False)
class Zygote:
    """One process that imported the application. `failure` is what to show the user."""

    generation: int
    pid: int
    channel: Channel
    stacks: StackPipe
    started_at: float
    phase: Phase = Phase.IMPORTING
    failure: str | None = None
    late_since: float | None = None
    dismissed: bool = False

    @property
    def is_loaded(self) -> bool:
        return self.phase is Phase.LOADED

    @property
    def can_fork(self) -> bool:
        return self.is_loaded and not self.dismissed and not self.channel.at_eof


@dataclass(slots=True, kw_only=True)
class Generations:
    """`on_message` gets what a zygote says of its workers: forked, fork_failed, exit."""

    ground: Ground
    on_message: Callable[[Zygote, dict[str, Any]], None] = field(init=False)
    zygotes: list[Zygote] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    last: int = 0
    _histories: dict[int, SlotHistory] = field(default_factory=dict)

    def adopt_first(self, started: Started) -> None:
        self.last = FIRST_GENERATION
        self._adopt(FIRST_GENERATION, started)

    def start_next(self) -> Zygote:
        """A zygote of a new generation. Raises OSError."""
        self.last += 1
        return self._start(self.last)

    def loaded(self, generation: int) -> Zygote | None:
        """The zygote that can fork workers of `generation` now."""
        for zygote in self.zygotes:
            if zygote.generation == generation and zygote.can_fork:
                return zygote
        return None

    def fork(self, zygote: Zygote, serial: int, berth: dict[str, Any], fds: Sequence[int]) -> None:
        zygote.channel.send_fds({"t": "fork", "serial": serial, "berth": berth}, fds)

    def ensure(self, generation: int, now: float) -> None:
        """Start the zygote of `generation` again if it was lost."""
        if any(zygote.generation == generation and not zygote.dismissed for zygote in self.zygotes):
            return
        if now < self._history(generation).not_before:
            return
        try:
            self._start(generation)
        except OSError as error:
            log.error("zygote could not be started: %s", error, extra={"generation": generation})
            self._count_death(generation, lived_s=0.0)

    def deaths(self, generation: int) -> int:
        """How many zygotes of `generation` died in a row without lasting."""
        return self._history(generation).deaths

    def take_failure(self, generation: int) -> str | None:
        """Why the zygote of `generation` could not import the application, told once."""
        return self.failures.pop(generation, None)

    def forgive(self, gap_s: float) -> None:
        for zygote in self.zygotes:
            zygote.started_at += gap_s

    def give_up_on(self, zygote: Zygote, why: str) -> None:
        """It does not do its duty (stopped?): it is killed, its workers are adopted, another is started."""
        if zygote.phase is not Phase.GONE:
            extra = {"generation": zygote.generation}
            log.error("zygote gen %d %s, killing it", zygote.generation, why, extra=extra)
            zygote.phase = Phase.GONE
            self._kill(zygote)

    def check_import_time(self, now: float) -> None:
        """Where a late one hangs is asked first: what is killed at once says nothing."""
        limit_s = self.ground.settings.timeouts.boot_s
        for zygote in self.zygotes:
            if zygote.phase is not Phase.IMPORTING or now - zygote.started_at <= limit_s:
                continue
            if zygote.late_since is None:
                zygote.late_since = now
                os.kill(zygote.pid, signal.SIGUSR1)
            elif now - zygote.late_since >= STACKS_TAKE_S:
                self._failed(zygote, f"the application's import did not finish within {limit_s:g} s")

    def dismiss(self, zygote: Zygote) -> None:
        """By force: it holds nothing, and an application's exit handlers might take their time."""
        if not zygote.dismissed:
            zygote.dismissed = True
            self._kill(zygote)
            zygote.channel.close()

    def dismiss_unneeded(self, needed: set[int]) -> None:
        for zygote in self.zygotes:
            if zygote.generation not in needed:
                self.dismiss(zygote)
        for generation in self.failures.keys() - needed:
            del self.failures[generation]

    def exited(self, pid: int, exit_: Exit) -> Zygote | None:
        """None if `pid` was no zygote."""
        zygote = next((zygote for zygote in self.zygotes if zygote.pid == pid), None)
        if zygote is None:
            return None
        self.zygotes.remove(zygote)  # first: what it says last must not have it killed, its pid is free
        self._take_last_words(zygote)
        if not zygote.dismissed:
            self._count_death(zygote.generation, lived_s=self.ground.loop.time() - zygote.started_at)
        if zygote.phase is Phase.IMPORTING and not zygote.dismissed:
            self._failed(zygote, f"the process that imports the application {_how(exit_)}")
        elif zygote.phase is Phase.LOADED:
            zygote.phase = Phase.GONE
        if not zygote.dismissed and zygote.phase is not Phase.FAILED:
            extra = {"pid": pid, "generation": zygote.generation, "exit": str(exit_)}
            log.warning("zygote gen %d gone: %s", zygote.generation, exit_, extra=extra)
        zygote.channel.close()
        zygote.stacks.close()
        return zygote

    def _history(self, generation: int) -> SlotHistory:
        return self._histories.get(generation, SlotHistory())

    def _count_death(self, generation: int, *, lived_s: float) -> None:
        now, policy, before = (
            self.ground.loop.time(),
            self.ground.settings.restarts,
            self._history(generation),
        )
        after = restart.after_death(before, ready_for_s=lived_s, now=now, policy=policy)
        self._histories[generation] = after

    def _take_last_words(self, zygote: Zygote) -> None:
        if not zygote.channel.at_eof:
            zygote.channel.read_to_end()

    def _start(self, generation: int) -> Zygote:
        started = start_zygote(self.ground.settings, self.ground.shared, generation=generation)
        return self._adopt(generation, started)

    def _adopt(self, generation: int, started: Started) -> Zygote:
        loop = self.ground.loop
        channel = Channel(
            started.link, on_message=lambda message: self._heard(zygote, message), on_eof=self.ground.wake
        )
        zygote = Zygote(
            generation=generation,
            pid=started.pid,
            channel=channel,
            stacks=StackPipe(loop, started.stacks_fd, who=f"zygote gen {generation}"),
            started_at=started.at,
        )
        channel.attach(loop)
        self.zygotes.append(zygote)
        log.info("zygote started", extra={"worker_pid": started.pid, "generation": generation})
        return zygote

    def _heard(self, zygote: Zygote, message: dict[str, Any]) -> None:
        match message:
            case {"t": "loaded", "warnings": warnings}:
                zygote.phase = Phase.LOADED
                for warning in warnings:
                    log.warning("not safe to fork: %s", warning, extra={"generation": zygote.generation})
            case {"t": "load_failed", "text": text}:
                self._failed(zygote, text)
            case _:
                self.on_message(zygote, message)
        self.ground.wake()

    def _failed(self, zygote: Zygote, text: str) -> None:
        """It is of no use, and a thread that its application left may keep it from exiting."""
        self._kill(zygote)
        zygote.phase, zygote.failure = Phase.FAILED, text
        self.failures[zygote.generation] = text

    def _kill(self, zygote: Zygote) -> None:
        if zygote in self.zygotes:
            os.kill(zygote.pid, signal.SIGKILL)


def _how(exit_: Exit) -> str:
    return f"was {exit_}" if isinstance(exit_, Signaled) else str(exit_)
