"""A queue's owner on the mesh: answers every verb, follows who is alive, carries the store's effects out.
Knows keys and queries; the rules of the queue are the state machine's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from istos_worker.queue.declared import DeclaredStore
from istos_worker.wire.auth import Authorizer, combine_authorizers
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.session import Session

if TYPE_CHECKING:
    from istos_worker.queue.role_binding import Binding
    from istos_worker.queue.store import QueueStore
    from istos_worker.storage import Storage

_log = logging.getLogger(__name__)


class QueueRole:
    """The owner of one queue, with peer 0.3's parameters. One process owns a queue; a second is warned about.

    `sweep_interval_s` is taken for the peer's sake: what is due here is done when it is due.
    `token` is what continuations carry to the owners of other queues.
    """

    def __init__(
        self,
        prefix: str,
        store: QueueStore | DeclaredStore,
        *,
        lease_s: float = 30.0,
        max_attempts: int = 5,
        sweep_interval_s: float = 5.0,
        retry_backoff_s: float = 0.0,
        retry_backoff_max_s: float = 600.0,
        retry_jitter: float = 0.1,
        crash_budget: int = 3,
        ha: bool = False,
        authorizer: Authorizer | None = None,
        logger: logging.Logger | None = None,
        token: str | None = None,
    ) -> None:
        self.prefix = queue_prefix(prefix)
        self._store = store
        self.sweep_interval_s = sweep_interval_s
        self.ha = ha
        self.settings = replace(
            store.settings,
            prefix=self.prefix,
            lease_s=lease_s,
            max_attempts=max_attempts,
            retry_backoff_s=retry_backoff_s,
            retry_backoff_max_s=retry_backoff_max_s,
            retry_jitter=retry_jitter,
            crash_budget=crash_budget,
        )
        self.owner_id = secrets.token_hex(8)
        self._authorizer = authorizer
        self._token = token
        self._log = logger or _log
        self._bound: Binding | None = None

    def served(
        self,
        *,
        storage: Storage | None = None,
        authorizer: Authorizer | None = None,
        token: str | None = None,
    ) -> QueueRole:
        """An owner of this queue as a command runs it: on another storage, with one more authorizer, with another
        token. What the command does not say (None) is as declared."""
        if storage is None and authorizer is None and token is None:
            return self
        store, settings = self._store, self.settings
        if storage is not None:
            store = DeclaredStore(self.prefix, storage, settings.keep_results, settings.result_ttl_s)
        return QueueRole(
            self.prefix,
            store,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            sweep_interval_s=self.sweep_interval_s,
            retry_backoff_s=settings.retry_backoff_s,
            retry_backoff_max_s=settings.retry_backoff_max_s,
            retry_jitter=settings.retry_jitter,
            crash_budget=settings.crash_budget,
            ha=self.ha,
            authorizer=combine_authorizers(self._authorizer, authorizer),
            logger=self._log,
            token=token or self._token,
        )

    @property
    def store(self) -> QueueStore:
        if isinstance(self._store, DeclaredStore):
            self._store = self._store.make()
        return self._store

    @property
    def lease_s(self) -> float:
        return self.settings.lease_s

    @property
    def max_attempts(self) -> int:
        return self.settings.max_attempts

    @property
    def is_active(self) -> bool:
        """True while this node answers for the queue."""
        return self._bound is not None

    async def bind(self, session: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Reads the store and begins to answer. `session`: ours, or a raw `zenoh.Session`; it stays the
        caller's to close. Raises StorageUnavailableError when the store cannot be read."""
        if self._bound is not None:
            return
        if self.ha:
            self._log.warning(
                "queue %s: ha=True, but takeover is not part of this version: this process serves as the only "
                "owner",
                self.prefix,
            )
        from istos_worker.queue.role_binding import Binding

        ours = session if isinstance(session, Session) else Session(session, loop)
        self.store.configure(self.settings)
        bound = Binding(
            self.store,
            ours,
            owner_id=self.owner_id,
            authorizer=self._authorizer,
            token=self._token,
            log=self._log,
        )
        self.store.on_effects = bound.carry_out
        self.store.on_reloaded = bound.on_reloaded
        await self.store.load()
        await ours.open_local()
        self._bound = bound
        bound.declare()
        self._log.info("queue %s: this process is its owner", self.prefix, extra={"prefix": self.prefix})

    def unbind(self) -> None:
        """Stops answering at once; callers that wait are let go. Idempotent."""
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.undeclare()

    async def aclose(self) -> None:
        """`unbind`, and the store is closed, its last batch written. Idempotent."""
        bound = self._bound
        self.unbind()
        if bound is not None:
            await bound.courier.aclose()
        await self.store.aclose()
