"""A reload as a transaction: import, one canary, roll; any failure goes back. Drives Rolling."""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass, field

from supervisor.crew import Crew
from supervisor.generations import Generations, Phase, Zygote
from supervisor.restart import boots_exhausted
from supervisor.rolling import Rolling
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """`error` None: every worker is of `generation`."""

    generation: int
    error: str | None = None


class Progress(enum.Enum):
    IDLE = "idle"
    IMPORTING = "importing"
    CANARY = "canary"
    ROLLING = "rolling"


@dataclass(slots=True, kw_only=True)
class Reloading:
    """One at a time; requests that come meanwhile are joined into the next one."""

    crew: Crew
    generations: Generations
    rolling: Rolling
    progress: Progress = Progress.IDLE
    last_error: str | None = None
    _zygote: Zygote | None = None
    _canary: Worker | None = None
    _previous: int = 0
    _wanted: bool = False
    _waiting: list[asyncio.Future[ReloadResult]] = field(default_factory=list)
    _served: list[asyncio.Future[ReloadResult]] = field(default_factory=list)

    @property
    def under_way(self) -> bool:
        return self.progress is not Progress.IDLE or self._wanted

    def request(self) -> asyncio.Future[ReloadResult]:
        """Resolved when the reload it belongs to is complete or undone."""
        future: asyncio.Future[ReloadResult] = self.crew.ground.loop.create_future()
        self._waiting.append(future)
        self._wanted = True
        self.crew.ground.wake()
        return future

    def step(self, now: float) -> None:
        match self.progress:
            case Progress.IDLE:
                self._maybe_begin(now)
            case Progress.IMPORTING:
                self._importing(now)
            case Progress.CANARY:
                self._canary_step()
            case Progress.ROLLING:
                self._rolling_step()

    def needed_generations(self) -> set[int]:
        needed = {self.crew.trusted, self.rolling.target}
        if self._zygote is not None:
            needed.add(self._zygote.generation)
        if self.progress is Progress.ROLLING:
            needed.add(self._previous)
        return needed

    def abort(self, reason: str) -> None:
        """The fleet stops: whoever waits is told."""
        self._wanted = False
        self._served += self._waiting
        self._waiting = []
        if self.progress is not Progress.IDLE:
            self._end(reason)
        self._resolve(ReloadResult(generation=self.crew.trusted, error=reason))

    def _maybe_begin(self, now: float) -> None:
        if not self._wanted or not self._started:
            return
        self._wanted = False
        self._served, self._waiting = self._waiting, []
        self._previous = self.crew.trusted
        log.info("reloading", extra={"generation": self.generations.last + 1})
        try:
            self._zygote = self.generations.start_next()
        except OSError as error:
            self._fail(f"zygote could not be started: {error}")
            return
        self.progress = Progress.IMPORTING

    @property
    def _started(self) -> bool:
        """There is something to go back to."""
        crew = self.crew
        return crew.ledger.ever_ready or (
            crew.wanted == 0 and self.generations.loaded(crew.trusted) is not None
        )

    def _importing(self, now: float) -> None:
        zygote = self._zygote
        assert zygote is not None
        if zygote.phase is Phase.LOADED:
            self._begin_canary(zygote, now)
        elif zygote.phase is not Phase.IMPORTING:
            self._fail(zygote.failure or "the new zygote died")

    def _begin_canary(self, zygote: Zygote, now: float) -> None:
        if not self.rolling.idle:
            return  # a replacement is under way: one at a time
        if self.crew.wanted == 0:
            self._trust(zygote.generation)
            return
        ready = sorted(self.crew.ready(), key=lambda worker: worker.slot)
        old = ready[0] if ready else None
        slot = old.slot if old is not None else 0
        self._canary = self.crew.spawn(slot, zygote, now=now, replaces=old)
        if self._canary is None:
            self._fail("the first worker of the new generation could not be forked")
            return
        self.rolling.incoming, self.rolling.reason = (
            self._canary,
            f"replaced by generation {zygote.generation}",
        )
        self._canary.is_canary = True
        self.progress = Progress.CANARY

    def _canary_step(self) -> None:
        canary, zygote = self._canary, self._zygote
        assert canary is not None
        assert zygote is not None
        if canary.ready_at is not None:
            self._trust(zygote.generation)
        elif canary not in self.crew.workers or canary.stage is Stage.LEAVING:
            self._fail(canary.last_words or "the first worker of the new generation did not become ready")

    def _trust(self, generation: int) -> None:
        self._canary = None
        self.crew.trusted = self.rolling.target = generation
        self.crew.ledger.clear_failed_boots()
        self.progress = Progress.ROLLING

    def _rolling_step(self) -> None:
        zygote = self._zygote
        assert zygote is not None
        policy = self.crew.ground.settings.restarts
        failing = [
            slot
            for slot in range(self.crew.wanted)
            if boots_exhausted(self.crew.ledger.history(slot), policy)
        ]
        if zygote.phase is not Phase.LOADED:
            self._roll_back("the new zygote died")
        elif failing:
            self._roll_back(f"worker {failing[0]} of the new generation did not become ready")
        elif self.rolling.complete and not self.crew.unstaffed_slots():
            self._succeed(zygote.generation)

    def _succeed(self, generation: int) -> None:
        log.info("reloaded, generation %d", generation, extra={"generation": generation})
        self.crew.ledger.count("reloads")
        self._end(None)
        self._resolve(ReloadResult(generation=generation))

    def _roll_back(self, error: str) -> None:
        self.crew.trusted = self.rolling.target = self._previous
        self.rolling.drop_incoming("reload undone")
        self.crew.ledger.clear_failed_boots()
        self._fail(error)

    def _fail(self, error: str) -> None:
        log.error("reload failed, generation %d goes on:\n%s", self._previous, error, extra={"error": error})
        self.crew.ledger.count("reload_failures")
        self._end(error)
        self._resolve(ReloadResult(generation=self._previous, error=error))

    def _end(self, error: str | None) -> None:
        self.last_error = error
        self._zygote = self._canary = None
        self.progress = Progress.IDLE

    def _resolve(self, result: ReloadResult) -> None:
        for future in self._served:
            if not future.done():
                future.set_result(result)
        self._served = []
