"""Recurring jobs: as declared (plan), which ticks are due (ticks), and the loop that enqueues them (beat)."""

from istos_worker.scheduling.plan import Schedule, make_schedule
from istos_worker.scheduling.ticks import CatchUp

__all__ = ["CatchUp", "Schedule", "make_schedule"]
