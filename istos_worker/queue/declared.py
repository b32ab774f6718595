"""A queue's store before it is needed. Knows what it would be made of; loads no state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from istos_worker.queue.settings import QueueSettings

if TYPE_CHECKING:
    from istos_worker.queue.store import QueueStore
    from istos_worker.storage import Storage


@dataclass(frozen=True, slots=True)
class DeclaredStore:
    """Most processes that declare a queue never own it: a worker starts a tenth sooner without the owner's code."""

    prefix: str
    storage: Storage
    keep_results: bool = False
    result_ttl_s: float = 3600.0

    @property
    def settings(self) -> QueueSettings:
        return QueueSettings(
            prefix=self.prefix, keep_results=self.keep_results, result_ttl_s=self.result_ttl_s
        )

    def make(self) -> QueueStore:
        from istos_worker.queue.store import QueueStore

        return QueueStore(
            self.prefix, self.storage, keep_results=self.keep_results, result_ttl_s=self.result_ttl_s
        )
