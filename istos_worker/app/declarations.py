"""What a program has declared, before anything runs. Holds values; opens nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from istos_worker.queue.role import QueueRole
from istos_worker.queue.store import QueueStore
from istos_worker.wire.auth import combine_authorizers

if TYPE_CHECKING:
    import logging

    from istos_worker.serialization import Serializer
    from istos_worker.storage import Storage
    from istos_worker.wire.auth import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """How a queue behaves, in peer 0.3's words. Durations in seconds."""

    lease_s: float = 30.0
    max_attempts: int = 5
    sweep_interval_s: float = 5.0
    retry_backoff_s: float = 1.0
    retry_backoff_max_s: float = 600.0
    retry_jitter: float = 0.1
    crash_budget: int = 3
    ha: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeclaration:
    """A queue that this program can own."""

    prefix: str
    options: OwnerOptions
    keep_results: bool
    result_ttl_s: float
    role: QueueRole
    """The owner on the app's own storage; nothing is opened before it is bound."""
    authorizer: Authorizer | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def role_on(self, storage: Storage) -> QueueRole:
        """An owner of this queue with another storage, such as that of an embedded owner."""
        store = QueueStore(
            self.prefix, storage, keep_results=self.keep_results, result_ttl_s=self.result_ttl_s
        )
        return make_role(self.prefix, store, self.options, authorizer=self.authorizer, token=self.token)

    def served(self, storage: Storage | None, authorizer: Authorizer | None, token: str | None) -> QueueRole:
        """An owner of this queue as a command runs it; what the command does not say is as declared."""
        if authorizer is None and token is None:
            return self.role if storage is None else self.role_on(storage)
        store = self.role.store
        if storage is not None:
            store = QueueStore(
                self.prefix, storage, keep_results=self.keep_results, result_ttl_s=self.result_ttl_s
            )
        return make_role(
            self.prefix,
            store,
            self.options,
            authorizer=combine_authorizers(self.authorizer, authorizer),
            token=token or self.token,
        )


def make_role(
    prefix: str,
    store: QueueStore,
    options: OwnerOptions,
    *,
    authorizer: Authorizer | None,
    token: str | None,
    logger: logging.Logger | None = None,
) -> QueueRole:
    return QueueRole(
        prefix,
        store,
        lease_s=options.lease_s,
        max_attempts=options.max_attempts,
        sweep_interval_s=options.sweep_interval_s,
        retry_backoff_s=options.retry_backoff_s,
        retry_backoff_max_s=options.retry_backoff_max_s,
        retry_jitter=options.retry_jitter,
        crash_budget=options.crash_budget,
        ha=options.ha,
        authorizer=authorizer,
        token=token,
        logger=logger,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeclaration:
    """A function that runs the jobs of a queue."""

    prefix: str
    function: Callable[..., Any]
    concurrency: int | None = None
    """None: the command's number, or 1 under `App.serving()`."""
    poll_interval_s: float = 1.0
    serializer: Serializer | None = None
    token: str | None = field(default=None, repr=False)
