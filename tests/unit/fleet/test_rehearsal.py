"""What the zygote does once so that its workers share it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from istos_worker.fleet import rehearsal
from istos_worker.fleet.rehearsal import JOBS, rehearse


def listed(what: str) -> set[str]:
    return set(os.listdir(f"/proc/self/{what}"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_part_is_played_to_its_end_and_leaves_nothing_that_a_fork_would_share() -> None:
    rehearse()
    descriptors, threads = listed("fd"), listed("task")

    assert rehearse() == JOBS

    assert listed("fd") <= descriptors
    assert listed("task") <= threads


def test_a_part_that_hangs_is_broken_off_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rehearsal, "_job", lambda body: asyncio.Event().wait())
    monkeypatch.setattr(rehearsal, "_WITHIN_S", 0.05)

    with pytest.raises(TimeoutError):
        rehearse()

    assert not caplog.records
