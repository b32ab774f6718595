"""Where the application of this package joins in."""

from __future__ import annotations

from typing import Protocol

from supervisor.obituary import Obituary
from supervisor.orders import Body
from supervisor.status import Status


class Hooks(Protocol):
    """Called in the supervisor's loop: return quickly, never block."""

    def on_exit(self, obituary: Obituary) -> Body | None:
        """A worker is dead for certain. What is returned reaches a living process as a `Message`."""
        ...

    def metrics(self, status: Status) -> str:
        """The body of `/metrics`."""
        ...


class PlainHooks:
    """Tells nobody, shows the few figures this package has of its own."""

    def on_exit(self, obituary: Obituary) -> Body | None:
        return None

    def metrics(self, status: Status) -> str:
        ready = sum(worker.stage == "ready" for worker in status.workers)
        done = sum(worker.done for worker in status.workers)
        return f"supervisor_workers_ready {ready}\nsupervisor_units_done {done}\n"
