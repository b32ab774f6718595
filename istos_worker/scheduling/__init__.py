"""Recurring jobs: which ticks are due (plan), and the loop that enqueues them (beat)."""

from istos_worker.scheduling.plan import CatchUp, Schedule, make_schedule

__all__ = ["CatchUp", "Schedule", "make_schedule"]
