"""The queue's owner: a pure state machine, the store that drives it, and its place on the mesh.

The names below are loaded when they are first used: the state machine alone needs neither Zenoh nor asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from istos_worker.context import JobContext
    from istos_worker.queue.cron import CronError, CronSchedule
    from istos_worker.queue.records import JobRecord, JobState
    from istos_worker.queue.role import QueueRole
    from istos_worker.queue.store import QueueStore

__all__ = [
    "CronError",
    "CronSchedule",
    "JobContext",
    "JobRecord",
    "JobState",
    "QueueRole",
    "QueueStore",
    "Worker",
]

_HOME = {
    "CronError": "istos_worker.queue.cron",
    "CronSchedule": "istos_worker.queue.cron",
    "JobContext": "istos_worker.context",
    "JobRecord": "istos_worker.queue.records",
    "JobState": "istos_worker.queue.records",
    "QueueRole": "istos_worker.queue.role",
    "QueueStore": "istos_worker.queue.store",
    "Worker": "istos_worker.worker",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
