"""What follows a worker's death: the obituary, the application's hook, the ledger."""

from __future__ import annotations

import collections
import logging
from dataclasses import dataclass, field

from supervisor.board import Figures
from supervisor.exits import Exit, Exited, likely_cause
from supervisor.hooks import Hooks
from supervisor.ledger import Ledger
from supervisor.obituary import Obituary, OomKills, cgroup_oom_kills, log_obituary
from supervisor.post import Post
from supervisor.workers import Stage, Worker

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Mourning:
    """`burst`: a worker that leaves by itself with code 0 has finished."""

    hooks: Hooks
    post: Post
    ledger: Ledger
    burst: bool
    _told: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=20))
    _oom_kills: OomKills = field(default_factory=lambda: OomKills(cgroup_oom_kills))

    def bury(
        self, worker: Worker, exit_: Exit, figures: Figures, *, peak_memory_bytes: int, now: float
    ) -> Obituary:
        """Logged, and the application told, whatever its hook does."""
        obituary = self._obituary(worker, exit_, figures, peak_memory_bytes, now)
        log_obituary(obituary)
        self._log_last_words(worker)
        self.post.take_back(worker)
        self._tell_application(obituary)
        self.ledger.count("done", obituary.done)
        self.ledger.count("deaths")
        return obituary

    def _obituary(
        self, worker: Worker, exit_: Exit, figures: Figures, peak_memory_bytes: int, now: float
    ) -> Obituary:
        expected = exit_ == Exited(0) and (worker.stage is Stage.LEAVING or self.burst)
        ours, oom_kills = worker.killed_because, self._oom_kills.since_last()
        return Obituary(
            slot=worker.slot,
            pid=worker.pid,
            generation=worker.generation,
            exit=exit_,
            cause=str(exit_) if expected else likely_cause(exit_, ours=ours, oom_kills=oom_kills),
            expected=expected,
            age_s=now - worker.ordered_at,
            peak_memory_bytes=peak_memory_bytes,
            done=figures.done,
            held=figures.held,
            label=figures.label,
            reason=worker.leave_reason,
        )

    def _log_last_words(self, worker: Worker) -> None:
        """Once for all workers that fail alike."""
        words, extra = worker.last_words, {"slot": worker.slot}
        if words is not None and words in self._told:
            log.error("worker %d failed as before: %s", worker.slot, words.rpartition("\n")[2], extra=extra)
        elif words is not None:
            self._told.append(words)
            log.error("worker %d failed:\n%s", worker.slot, words, extra=extra)

    def _tell_application(self, obituary: Obituary) -> None:
        try:
            body = self.hooks.on_exit(obituary)
        except Exception:  # the application's hook: it must not end the supervisor
            log.exception("on_exit hook failed")
            return
        if body is not None:
            self.post.add(body)
