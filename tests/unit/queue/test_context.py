"""What a handler sees of its delivery."""

from __future__ import annotations

import dataclasses

import pytest
from istos.queue.store import JobContext as PeerContext

from istos_worker.context import JobContext, LiveDelivery


def test_it_has_the_peer_s_fields_in_the_peer_s_order() -> None:
    peer = [field.name for field in dataclasses.fields(PeerContext)]
    ours = [field.name for field in dataclasses.fields(JobContext)]

    assert ours[: len(peer)] == peer


def test_it_is_frozen_and_yet_tells_what_changes_during_the_run() -> None:
    live = LiveDelivery()
    ctx = JobContext("j", "q", 1, 5, live=live)
    assert (ctx.deadline, ctx.draining, ctx.cancelled) == (None, False, False)

    live.deadline, live.draining, live.cancelled = 12.5, True, True

    assert (ctx.deadline, ctx.draining, ctx.cancelled) == (12.5, True, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ctx.attempt = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("attempt", "crashes", "is_retry", "is_last"),
    [(1, 0, False, False), (2, 0, True, False), (3, 0, True, True), (3, 1, True, False), (4, 1, True, True)],
)
def test_the_last_attempt_is_the_one_whose_failure_is_final(
    attempt: int, crashes: int, is_retry: bool, is_last: bool
) -> None:
    ctx = JobContext("j", "q", attempt, 3, crashes=crashes)

    assert (ctx.is_retry, ctx.is_last_attempt) == (is_retry, is_last)


def test_progress_reaches_the_worker() -> None:
    told: list[tuple[float | None, str | None]] = []
    ctx = JobContext("j", "q", 1, 3, live=LiveDelivery(on_progress=lambda *said: told.append(said)))

    ctx.progress(0.5, "half")
    JobContext("j", "q", 1, 3).progress(1)

    assert told == [(0.5, "half")]
    with pytest.raises(ValueError, match="from 0 to 1"):
        ctx.progress(50)
