"""Keeps a queue's jobs out of the garbage collector's sight: they are many, are kept for long and form no cycles, so
reference counts are enough for them. Knows numbers of jobs; no queue."""

from __future__ import annotations

import gc

_MANY_JOBS = 50_000
"""So many new ones are hidden: a full collection would walk over all of them."""


class SparedCollector:
    def __init__(self) -> None:
        self._hidden = 0
        """Jobs held when they were last hidden."""
        self._collects = True

    def begin_loading(self) -> None:
        """A million new objects are to come, all of them kept: nothing to find meanwhile."""
        self._collects = gc.isenabled()
        gc.disable()

    def end_loading(self, jobs: int) -> None:
        if jobs > _MANY_JOBS:
            gc.freeze()  # before the collector, let loose again, walks over them
            self._hidden = jobs
        if self._collects:
            gc.enable()

    def holds(self, jobs: int) -> None:
        """To be told now and then."""
        if jobs > self._hidden + _MANY_JOBS and gc.isenabled():
            gc.freeze()
            self._hidden = jobs
        elif jobs < self._hidden - _MANY_JOBS:
            self._hidden = jobs
