"""One Zenoh session under asyncio: ask, answer, publish, watch who is alive. The only module that imports zenoh.

Owners of this machine are found through Zenoh and then asked at their local sockets, where they have one.

Zenoh calls back in its own threads. Everything is handed to the event loop through a deque with one wake-up
a batch, because a wake-up costs more than an append (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import zenoh

from istos_worker.errors import IstosError, OwnerUnreachable
from istos_worker.wire.asking import Incoming
from istos_worker.wire.handover import Handover
from istos_worker.wire.keys import INFO_END, prefix_of
from istos_worker.wire.local_client import LocalConnections
from istos_worker.wire.local_server import LocalServer
from istos_worker.wire.settings import ZenohSettings
from istos_worker.wire.threads import few_threads, in_a_thread_of_its_own

log = logging.getLogger(__name__)

_first_opened_by: int | None = None
"""The process that opened this interpreter's first session; a forked child inherits the number."""


class Handle(Protocol):
    """Something declared on the session; undeclare() is idempotent."""

    def undeclare(self) -> None: ...


class _Query:
    """As Incoming, over the mesh."""

    __slots__ = ("_query", "attachment", "key", "local_name", "params", "payload")

    def __init__(self, query: zenoh.Query, key: str, local_name: str | None) -> None:
        self._query: zenoh.Query | None = query
        self.key = key
        self.local_name = local_name
        self.params = str(query.parameters)
        payload = query.payload
        self.payload = b"" if payload is None else payload.to_bytes()
        attachment = query.attachment
        self.attachment = None if attachment is None else attachment.to_bytes()

    @property
    def is_exact(self) -> bool:
        return self._query is None or "*" not in str(self._query.key_expr)

    def reply(self, payload: bytes) -> None:
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(zenoh.ZError):
                query.reply(self.key, payload)
                query.drop()  # type: ignore[no-untyped-call]

    def drop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.drop()  # type: ignore[no-untyped-call]


class _Answer:
    """The one reply to a query of ours, or the news that there will be none."""

    __slots__ = ("raw", "timed_out")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.timed_out = False

    def on_reply(self, reply: zenoh.Reply) -> None:
        ok = reply.ok
        if ok is None:
            self.timed_out = True
        elif self.raw is None:
            self.raw = ok.payload.to_bytes()


class _Asked(_Answer):
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[bytes | None]) -> None:
        super().__init__()
        self.future = future


def _settle(asked: list[_Asked]) -> None:
    for one in asked:
        if one.future.done():
            continue
        if one.raw is None and one.timed_out:
            one.future.set_exception(TimeoutError())
        else:
            one.future.set_result(one.raw)


def read_config(settings: ZenohSettings) -> zenoh.Config:
    """Raises IstosError."""
    try:
        return zenoh.Config.from_json5(settings.to_json5())
    except zenoh.ZError as refused:
        raise IstosError(f"Zenoh does not take this configuration: {refused}") from refused


class Session:
    """An open session. Make one with `await Session.open(settings)`, in the process that uses it: a session
    does not survive a fork (ARCHITECTURE.md, decision 4)."""

    def __init__(self, session: zenoh.Session, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop
        self._finished: Handover[_Asked] = Handover(loop, _settle)
        self._direct = LocalConnections(self, loop)
        self._local: LocalServer | None = None
        self._opening_local = asyncio.Lock()

    @classmethod
    async def open(cls, settings: ZenohSettings, config: zenoh.Config | None = None) -> Session:
        """`config`: what `read_config` made of the settings before. Raises IstosError naming the endpoints when Zenoh
        cannot open (OwnerUnreachable when a client finds nobody at them), and in a process forked from one that had
        a session."""
        global _first_opened_by
        if _first_opened_by not in (None, os.getpid()):
            raise IstosError(
                "this process was forked from one that had opened a Zenoh session, and such a process can "
                "open none that works: open the session (App, Client, SyncClient) only after the fork"
            )
        _first_opened_by = os.getpid()
        config = config or read_config(settings)
        try:
            with few_threads():
                session = await in_a_thread_of_its_own(lambda: zenoh.open(config))
        except zenoh.ZError as refused:
            kind = OwnerUnreachable if settings.is_nobody_there(str(refused)) else IstosError
            raise kind(settings.open_failure(str(refused))) from refused
        return cls(session, asyncio.get_running_loop())

    @property
    def zid(self) -> str:
        return str(self._session.zid())

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        """Sends a query. The future gives the reply, None when nobody answers (no owner, or it died), and
        raises TimeoutError when an owner is there but stays silent for `timeout_s`. After an owner's `info`, which
        may take a second longer for that, what it serves is asked in the shortest way there is."""
        if key.endswith(INFO_END):
            asked = self._ask_mesh(key, params, payload, attachment, timeout_s)
            return self._loop.create_task(self._meet(prefix_of(key), asked))
        direct = self._direct.to(key, payload, attachment)
        if direct is not None:
            return direct.ask(key, params, payload, attachment, timeout_s)
        return self._ask_mesh(key, params, payload, attachment, timeout_s)

    async def _meet(self, prefix: str, asked: asyncio.Future[bytes | None]) -> bytes | None:
        info = await asked
        if info is not None:
            await self._direct.meet(prefix, info)
        return info

    def _ask_mesh(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> asyncio.Future[bytes | None]:
        asked = _Asked(self._loop.create_future())
        finished = self._finished
        self._session.get(
            f"{key}?{params}" if params else key,
            zenoh.handlers.Callback(asked.on_reply, lambda: finished(asked), indirect=False),
            payload=payload,
            attachment=attachment,
            timeout=timeout_s,
        )
        return asked.future

    def ask_and_wait(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> bytes | None:
        """As `ask`, for threads other than the loop's, which is not involved: no hand-over, and half the CPU."""
        direct = self._direct.to(key, payload, attachment)
        if direct is not None and direct.takes_threads:
            return direct.ask_and_wait(key, params, payload, attachment, timeout_s)
        answer, is_answered = _Answer(), threading.Lock()
        is_answered.acquire()
        self._session.get(
            f"{key}?{params}" if params else key,
            zenoh.handlers.Callback(answer.on_reply, is_answered.release, indirect=False),
            payload=payload,
            attachment=attachment,
            timeout=timeout_s,
        )
        is_answered.acquire()
        if answer.raw is None and answer.timed_out:
            raise TimeoutError
        return answer.raw

    async def open_local(self) -> None:
        """From now on, what is served here is served at a local socket too, where the system has such."""
        async with self._opening_local:
            if self._local is not None and self._local.is_open:
                return
            local = LocalServer()
            try:
                await local.open()
            except OSError as unavailable:
                log.debug("no local socket: %s", unavailable)
            else:
                self._local = local

    def serve(self, key: str, take: Callable[[list[Incoming]], None]) -> Handle:
        """Answers queries at `key`; `take` gets them in batches, on the loop."""
        local = self._local

        def take_over(queries: list[zenoh.Query]) -> None:
            name = local.name if local is not None and local.is_open else None
            take([_Query(query, key, name) for query in queries])

        handover: Handover[zenoh.Query] = Handover(self._loop, take_over)
        if local is not None:
            local.serve(key, take)
        served = self._session.declare_queryable(
            key, zenoh.handlers.Callback(handover, _nothing, indirect=False), complete=True
        )
        return _Declared(served, None if local is None else partial(local.withdraw, key, take))

    def publish(self, key: str, payload: bytes) -> None:
        self._session.put(key, payload)

    def subscribe(self, key: str, take: Callable[[list[bytes]], None]) -> Handle:
        handover: Handover[zenoh.Sample] = Handover(
            self._loop, lambda samples: take([sample.payload.to_bytes() for sample in samples])
        )
        return _Declared(
            self._session.declare_subscriber(key, zenoh.handlers.Callback(handover, _nothing, indirect=False))
        )

    def declare_token(self, key: str) -> Handle:
        """Says "I am here" for as long as the process lives and the mesh sees it."""
        return _Declared(self._session.liveliness().declare_token(key))

    def watch_tokens(self, key_expr: str, take: Callable[[list[tuple[str, bool]]], None]) -> Handle:
        """`take` gets (key, alive) pairs, those already alive first."""
        handover: Handover[zenoh.Sample] = Handover(
            self._loop,
            lambda samples: take([(str(s.key_expr), s.kind == zenoh.SampleKind.PUT) for s in samples]),
        )
        return _Declared(
            self._session.liveliness().declare_subscriber(
                key_expr, zenoh.handlers.Callback(handover, _nothing, indirect=False), history=True
            )
        )

    async def tokens(self, key_expr: str, *, timeout_s: float = 1.0) -> list[str]:
        """The keys of the tokens alive now."""
        loop = self._loop
        keys: list[str] = []
        done: asyncio.Future[None] = loop.create_future()

        def on_reply(reply: zenoh.Reply) -> None:
            if reply.ok is not None:
                keys.append(str(reply.ok.key_expr))

        def on_end() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, done)

        callback = zenoh.handlers.Callback(on_reply, on_end, indirect=False)
        self._session.liveliness().get(key_expr, callback, timeout=timeout_s)
        await done
        return keys

    async def aclose(self) -> None:
        """Closes the session; tokens and queryables go with it. Idempotent."""
        self._direct.abort()
        if self._local is not None:
            self._local.abort()
        if not self._session.is_closed():
            await asyncio.to_thread(self._session.close)


class _Declared:
    def __init__(
        self,
        entity: zenoh.Queryable[None] | zenoh.Subscriber[None] | zenoh.LivelinessToken,
        besides: Callable[[], None] | None = None,
    ) -> None:
        self._entity: zenoh.Queryable[None] | zenoh.Subscriber[None] | zenoh.LivelinessToken | None = entity
        self._besides = besides

    def undeclare(self) -> None:
        entity, self._entity = self._entity, None
        if entity is not None:
            if self._besides is not None:
                self._besides()
            with contextlib.suppress(zenoh.ZError):  # the session may be closed already
                entity.undeclare()  # type: ignore[no-untyped-call]


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _nothing() -> None:
    return None
