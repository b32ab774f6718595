"""Outcomes that the owner has not confirmed yet, in order. Outlives outages and the pumps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from istos_worker.worker.delivery import Delivery
from istos_worker.worker.outcomes import Acked, Failed, Forgotten, Outcome, Released, size_of
from istos_worker.worker.statistics import Statistics

log = logging.getLogger(__name__)

Entry = tuple[Delivery, Outcome]
_MAX_OUTCOMES = 1000
_MAX_BYTES = 16 << 20
_NOT_TAKEN = "the owner does not take what the handler asked for"
_FINAL_REFUSALS = frozenset(("bad_request", "payload_too_large"))


class Outbox:
    def __init__(self, statistics: Statistics, *, on_added: Callable[[], None]) -> None:
        self._statistics = statistics
        self._on_added = on_added
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, delivery: Delivery, outcome: Outcome) -> None:
        figures = self._statistics
        kind = type(outcome)
        if kind is Forgotten:
            self._on_added()
            return
        if kind is Released:
            figures.released += 1
        else:
            figures.done += 1
            if kind is Acked:
                figures.succeeded += 1
            else:
                figures.failed += 1
        if isinstance(outcome, Failed):
            figures.last_error = outcome.error[:500]
        self._entries.append((delivery, outcome))
        self._on_added()

    def next_batch(self, most: int = _MAX_OUTCOMES) -> list[Entry]:
        """The first entries, as many as one settle may carry. They stay until `confirmed`."""
        batch: list[Entry] = []
        size = 0
        for entry in self._entries:
            size += size_of(entry[1])
            if batch and (len(batch) >= most or size > _MAX_BYTES):
                break
            batch.append(entry)
        return batch

    def confirmed(self, batch: Sequence[Entry], replies: Sequence[dict[str, Any]]) -> None:
        """The owner's answers to the first entries. Those it could not take now stay, at the end."""
        for (delivery, outcome), reply in zip(batch, replies, strict=True):
            self._entries.popleft()
            if reply.get("ok"):
                continue
            if reply.get("stale"):
                self._statistics.stale += 1
                log.warning("job %s: its outcome is too late, the owner had taken it back", delivery.label)
            elif "error" in reply:
                self._refused(delivery, outcome, str(reply["error"]), str(reply.get("message", "")))

    def refused(self, entry: Entry, code: str, message: str) -> None:
        """The owner refused a message with this one outcome, the first entry."""
        self._entries.popleft()
        self._refused(*entry, code, message)

    def _refused(self, delivery: Delivery, outcome: Outcome, code: str, message: str) -> None:
        if code not in _FINAL_REFUSALS:
            self._entries.append((delivery, outcome))
        elif isinstance(outcome, Acked):
            reason = f"the owner does not take the result: {message}"
            log.error("job %s ran, but %s", delivery.label, reason)
            self._entries.append((delivery, Failed(reason, discard=True)))
        elif isinstance(outcome, Failed) and outcome.error.startswith(_NOT_TAKEN):
            log.error("job %s: the owner takes no outcome of it: %s", delivery.label, message)
        else:
            # A wait beyond all limits, for instance. It must not stay leased to a worker that has forgotten it.
            log.error("job %s: %s: %s", delivery.label, _NOT_TAKEN, message)
            self._entries.append((delivery, Failed(f"{_NOT_TAKEN}: {message}")))
