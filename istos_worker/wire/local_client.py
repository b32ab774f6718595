"""The asking side of owners' local sockets: which queues can be asked there. Does not import zenoh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from istos_worker.errors import IstosError
from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.keys import INFO_END, owner_key, prefix_of, verb_key
from istos_worker.wire.local_connection import LocalConnection
from istos_worker.wire.local_frames import MAX_QUESTION_BYTES, FrameError

log = logging.getLogger(__name__)

_MAX_PAYLOAD_BYTES = MAX_QUESTION_BYTES // 2
"""The rest is for parameters and attachment. A longer one goes over the mesh."""
_BUSY_S = 1.0
_UNREACHABLE_S = 30.0
"""How soon an owner is asked for `info` again, when its socket did not take us in at once, or not at all."""


class Handle(Protocol):
    def undeclare(self) -> None: ...


class Mesh(Asks, Protocol):
    def watch_tokens(self, key_expr: str, take: Callable[[list[tuple[str, bool]]], None]) -> Handle: ...


class LocalConnections:
    """To the owners that can be asked directly, as their `info` says, for as long as the mesh shows them. A queue whose
    connection was lost is asked over the mesh, and its owner, which may be another one by then, for `info` again."""

    def __init__(self, mesh: Mesh, loop: asyncio.AbstractEventLoop) -> None:
        self._mesh = mesh
        self._loop = loop
        self._by_prefix: dict[str, LocalConnection] = {}
        self._by_name: dict[str, LocalConnection] = {}
        self._watched: dict[str, Handle] = {}
        self._lost: set[str] = set()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._looking: set[asyncio.Future[bytes | None]] = set()
        self._is_closed = False

    def to(self, key: str, payload: bytes | None, attachment: bytes | None) -> LocalConnection | None:
        """The connection to whoever serves `key`, if there is one and it can carry that much. Patterns and `info` are
        the mesh's. From any thread. The first question after one was lost has the owner asked for `info`, under its
        own attachment."""
        prefix = prefix_of(key)
        connection = self._by_prefix.get(prefix)
        if connection is None:
            if prefix in self._lost and not self._is_closed:
                self._lost.discard(prefix)
                self._loop.call_soon_threadsafe(self._look, prefix, attachment)
            return None
        if "*" in key or key.endswith(INFO_END):
            return None
        return None if payload is not None and len(payload) > _MAX_PAYLOAD_BYTES else connection

    def _look(self, prefix: str, attachment: bytes | None) -> None:
        if self._is_closed:
            return
        looking = self._mesh.ask(verb_key(prefix, "info"), attachment=attachment)
        self._looking.add(looking)
        looking.add_done_callback(partial(self._looked, prefix))

    def _looked(self, prefix: str, looking: asyncio.Future[bytes | None]) -> None:
        self._looking.discard(looking)
        if not looking.cancelled() and (looking.exception() is not None or looking.result() is None):
            self._look_later(prefix, _BUSY_S)

    def _look_later(self, prefix: str, after_s: float) -> None:
        self._cancel_look(prefix)
        if not self._is_closed:
            self._later[prefix] = self._loop.call_later(after_s, self._lost.add, prefix)

    def _cancel_look(self, prefix: str) -> None:
        timer = self._later.pop(prefix, None)
        if timer is not None:
            timer.cancel()
        self._lost.discard(prefix)

    async def meet(self, prefix: str, info: bytes) -> None:
        """Connects to where the owner's `info` says that it listens, if that can be reached from here."""
        try:
            name = decode_reply(info).get("local")
        except IstosError:  # refused: somebody else's token may be a better one
            self._look_later(prefix, _BUSY_S)
            return
        known = self._by_prefix.get(prefix)
        if known is not None and known.name == name and known.is_open:
            return
        self._by_prefix.pop(prefix, None)
        if not isinstance(name, str):
            self._look_later(prefix, _UNREACHABLE_S)
            return
        try:
            connection = await self._connection(name)
        except (BlockingIOError, TimeoutError):  # it is there, and busy
            self._look_later(prefix, _BUSY_S)
        except (OSError, FrameError) as failed:
            log.debug("the owner of %s is asked over the mesh: %s", prefix, failed)
            self._look_later(prefix, _UNREACHABLE_S)
        else:
            self._cancel_look(prefix)
            self._by_prefix[prefix] = connection
            if prefix not in self._watched:
                owners = owner_key(prefix, "*")
                self._watched[prefix] = self._mesh.watch_tokens(owners, partial(self._on_owners, prefix))

    def _on_owners(self, prefix: str, seen: list[tuple[str, bool]]) -> None:
        """A frozen process, and a child that one left behind, keep a connection open for ever."""
        connection = self._by_prefix.get(prefix)
        if connection is not None and not all(is_up for _, is_up in seen):
            connection.leave(prefix)

    async def _connection(self, name: str) -> LocalConnection:
        known = self._by_name.get(name)
        if known is not None and known.is_open:
            return known
        made = await LocalConnection.open(name, self)
        if self._is_closed:
            made.abort()
            raise ConnectionAbortedError("the session is closed")
        connection = self._by_name.setdefault(name, made)
        if connection is not made:  # another queue of the same owner was faster
            made.abort()
        return connection

    def lose(self, connection: LocalConnection, prefix: str) -> None:
        """The queue's owner did not answer there. From any thread."""
        if self._by_prefix.get(prefix) is connection:
            self._by_prefix.pop(prefix, None)
            self._lost.add(prefix)

    def broken(self, connection: LocalConnection) -> None:
        if self._by_name.get(connection.name) is connection:
            del self._by_name[connection.name]
        for prefix in list(self._by_prefix):
            self.lose(connection, prefix)

    def abort(self) -> None:
        self._is_closed = True
        for watched in self._watched.values():
            watched.undeclare()
        for prefix in list(self._later):
            self._cancel_look(prefix)
        for connection in list(self._by_name.values()):
            connection.abort()
