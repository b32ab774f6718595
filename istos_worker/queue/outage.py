"""While a queue's medium fails: when to look again, and what to say of it once. Knows reasons and times; no medium."""

from __future__ import annotations

import logging
import time

from istos_worker.errors import StorageUnavailableError

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
REPEAT_LOG_S = 60.0
"""A failure that goes on for the same reason is logged again after this long."""


class MediumOutage:
    """One for a queue, whether or not there is an outage."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._pause_s = FIRST_PAUSE_S
        """Before the next look: it grows until a turn has been written again."""
        self._logged: tuple[str, float] | None = None
        """The failure logged last, as long as it goes on, and when that was."""

    def next_pause_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        return pause_s

    def in_words(self, failure: Exception) -> StorageUnavailableError:
        """The failure itself, where it is one that a medium may raise."""
        if isinstance(failure, StorageUnavailableError):
            return failure
        log.error("queue %s: the medium failed in an unforeseen way", self._queue, exc_info=failure)
        return StorageUnavailableError(f"queue {self._queue}: the medium failed: {failure!r}")

    def note(self, failure: StorageUnavailableError) -> None:
        now = time.monotonic()
        if self._logged is None or self._logged[0] != str(failure) or now > self._logged[1] + REPEAT_LOG_S:
            self._logged = (str(failure), now)
            log.error("queue %s: %s; no request is accepted until it works again", self._queue, failure)

    def over(self) -> None:
        """A turn has been written."""
        self._pause_s = FIRST_PAUSE_S
        if self._logged is not None:
            self._logged = None
            log.warning("queue %s: the store works again, the queue was read back", self._queue)
