"""What the zygote does once so that its workers share it."""

from __future__ import annotations

import os
import sys

import pytest

from istos_worker.fleet.rehearsal import rehearse


def open_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_part_is_played_to_its_end_and_leaves_nothing_that_a_fork_would_share() -> None:
    rehearse()
    before = len(open_descriptors())
    tasks = os.listdir("/proc/self/task")
    assert rehearse() == 32
    assert len(open_descriptors()) == before
    assert os.listdir("/proc/self/task") == tasks
