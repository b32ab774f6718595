"""Whether this worker is served, for its statistics and its log: one line when an outage begins, one when it
is over. Also how long to wait before the owner is looked for again."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from istos_worker.worker.statistics import Statistics

log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_LONGEST_PAUSE_AT_FIRST_S = 0.2
_AT_FIRST_S = 30.0
"""As long as an owner may just be restarting, looking for it costs less than the jobs that wait."""
_REFUSED_PAUSE_S = 2.0
_LONGEST_REFUSED_PAUSE_S = 30.0
_PROOF_S = 1.0


class Outage:
    def __init__(
        self, prefix: str, *, statistics: Statistics, on_change: Callable[[], None] | None = None
    ) -> None:
        self._prefix = prefix
        self._statistics = statistics
        self._on_change = on_change
        self._since: float | None = None
        self._reason = ""
        self._refused = False
        self._tries = 0
        self._proof: asyncio.TimerHandle | None = None

    def owner(self, name: str) -> None:
        self._statistics.owner = name

    def note(self, reason: str, *, refused: bool = False) -> None:
        """No owner serves this worker, for that reason."""
        self._cancel_proof()
        self._tries += 1
        figures = self._statistics
        figures.last_error = reason
        is_new = self._since is None
        if is_new:
            self._since = time.monotonic()
            self._tries = 1
        if is_new or refused != self._refused:  # the wording may change from try to try
            level = logging.ERROR if refused else logging.WARNING
            log.log(level, "queue %s: not consuming: %s", self._prefix, reason, extra={"queue": self._prefix})
        self._reason, self._refused = reason, refused
        self._set_connected(False)

    def over(self) -> None:
        """An owner serves this worker."""
        if self._since is None:
            self._set_connected(True)
            return
        if self._tries > 1 and self._proof is None and "owner answers" in self._reason:
            # It is there and has been refusing: once is no proof.
            self._proof = asyncio.get_running_loop().call_later(_PROOF_S, self._over)
        elif self._proof is None:
            self._over()

    def _over(self) -> None:
        self._cancel_proof()
        if self._since is not None:
            took_s = time.monotonic() - self._since
            log.info(
                "queue %s: consuming again after %.1f s", self._prefix, took_s, extra={"queue": self._prefix}
            )
        self._since = None
        self._tries = 0
        self._reason = ""
        self._set_connected(True)

    def _set_connected(self, connected: bool) -> None:
        if self._statistics.connected is not connected:
            self._statistics.connected = connected
            if self._on_change is not None:  # from the loop, like every other change
                asyncio.get_running_loop().call_soon(self._on_change)

    def pause_s(self) -> float:
        first, longest = _FIRST_PAUSE_S, _LONGEST_PAUSE_S
        if self._refused:
            first, longest = _REFUSED_PAUSE_S, _LONGEST_REFUSED_PAUSE_S
        elif self._since is not None and time.monotonic() - self._since < _AT_FIRST_S:
            longest = _LONGEST_PAUSE_AT_FIRST_S
        pause_s: float = min(first * 2.0 ** min(self._tries - 1, 30), longest)
        return pause_s * random.uniform(0.75, 1.0)

    def _cancel_proof(self) -> None:
        if self._proof is not None:
            self._proof.cancel()
            self._proof = None

    def close(self) -> None:
        self._cancel_proof()
        self._statistics.connected = False
