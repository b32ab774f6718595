"""Looks at all queues in reach, again and again: owners are found by their tokens and asked for figures. Knows
nothing of how it is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from istos_worker.client import Client
from istos_worker.errors import BadRequestError, IstosError, NotFoundError, OwnerUnreachable
from istos_worker.observability.picture import Pace, Picture, QueueRow, QueueState, joined, told
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.session import Handle

_OWNERS = "**/_owners/*"
_SETTLED_S = 0.3


class Survey:
    """A context manager around a client that is not open yet. `look()` is for one caller at a time.

    `named`: only these queues; without, all whose owners announce themselves (istos 0.3 nodes do not). A queue that
    was seen once stays in the picture. `patience_s`: how long an owner may take for its answer.
    """

    def __init__(self, client: Client, *, named: Sequence[str] = (), patience_s: float = 1.0) -> None:
        self.client = client
        self._named = frozenset(named)
        self._patience_s = patience_s
        self._opening = asyncio.Lock()
        self._watch: Handle | None = None
        self._owners: dict[str, set[str]] = {}
        self._gone_since: dict[str, float] = {}
        self._paces: dict[str, Pace] = {}
        self._changed = asyncio.Event()
        """An owner came or went."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.undeclare()
        await self.client.aclose()

    @property
    def queues(self) -> frozenset[str]:
        """Those in the picture."""
        return self._named | self._owners.keys()

    async def open(self) -> None:
        """Raises OwnerUnreachable when a client finds nobody at its endpoints. `look()` tries it by itself."""
        async with self._opening:
            if self._watch is None:
                await self.client.open()
                self._watch = self.client.session.watch_tokens(_OWNERS, self._on_owners)

    async def find(self, *, within_s: float) -> None:
        """Returns when the owners of all named queues, or else those on the mesh, have had the time to announce
        themselves."""
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._named and all(self._owners.get(prefix) for prefix in self._named):
                return
            is_settling = bool(self._owners) and not self._named
            is_news = await self.change(within_s=min(left_s, _SETTLED_S) if is_settling else left_s)
            if is_settling and not is_news:
                return

    async def change(self, *, within_s: float) -> bool:
        """True as soon as an owner has come or gone since the last time; False after `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def look(self) -> Picture:
        """Never raises for what is wrong with the mesh or an owner: the picture says it."""
        try:
            await self.open()
        except IstosError as failed:
            gone = [QueueRow(queue=prefix, state="gone") for prefix in sorted(self._named)]
            return Picture(queues=gone, trouble=str(failed))
        prefixes = sorted(self.queues)
        seen = await asyncio.gather(*(self._ask(prefix) for prefix in prefixes))
        workers = {prefix: found for prefix, (_, found) in zip(prefixes, seen, strict=True)}
        return Picture(queues=[row for row, _ in seen], workers=joined(workers))

    async def _ask(self, prefix: str) -> tuple[QueueRow, Sequence[dict[str, Any]]]:
        if prefix in self._owners and not self._owners[prefix]:
            return self._without(prefix, "gone"), ()
        stats, workers = await asyncio.gather(
            self.client.stats(prefix, timeout_s=self._patience_s),
            self.client.workers(prefix, timeout_s=self._patience_s),
            return_exceptions=True,
        )
        match stats:
            case OwnerUnreachable():
                return self._without(prefix, "silent" if self._owners.get(prefix) else "gone"), ()
            case NotFoundError():
                return self._without(prefix, "refused", "an istos 0.3 owner tells no figures"), ()
            case IstosError():
                return self._without(prefix, "refused", f"{stats.code}: {stats}"), ()
            case BaseException():
                raise stats
        self._gone_since.pop(prefix, None)
        known = () if isinstance(workers, BaseException) else workers
        pace = self._paces.setdefault(prefix, Pace())
        try:
            return told(prefix, stats, pace.per_s(stats["totals"]["acked"], time.monotonic())), known
        except (KeyError, TypeError):
            return self._without(
                prefix, "refused", "its owner is of another version: figures of another kind"
            ), ()

    def _without(self, prefix: str, state: QueueState, note: str = "") -> QueueRow:
        self._paces.pop(prefix, None)
        now_s = time.monotonic()
        gone_s = now_s - self._gone_since.setdefault(prefix, now_s) if state == "gone" else None
        return QueueRow(queue=prefix, state=state, gone_s=gone_s, note=note)

    def _on_owners(self, seen: list[tuple[str, bool]]) -> None:
        for key, up in seen:
            prefix, _, owner = key.partition("/_owners/")
            if not _is_queue(prefix) or (self._named and prefix not in self._named):
                continue
            owners = self._owners.setdefault(prefix, set())
            (owners.add if up else owners.discard)(owner)
            if not owners:
                self._gone_since[prefix] = time.monotonic()
        self._changed.set()


def _is_queue(prefix: str) -> bool:
    """Keys come from whoever is on the mesh."""
    try:
        return queue_prefix(prefix) == prefix
    except BadRequestError:
        return False
