"""What the two pumps have in common to work with. Holds; does nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from istos_worker.worker.link import OwnerLink
from istos_worker.worker.outbox import Outbox
from istos_worker.worker.settings import WorkerSettings
from istos_worker.worker.slots import Slots


class Gate:
    """Whether claims are allowed, and whether the end has come."""

    def __init__(self) -> None:
        self.quiet = False
        self.draining = False

    @property
    def open(self) -> bool:
        return not (self.quiet or self.draining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    settings: WorkerSettings
    link: OwnerLink
    slots: Slots
    outbox: Outbox
    gate: Gate
    on_ready: Callable[[], None]
    """To be called when claims are answered."""
