"""The asking side of owners' local sockets: which queues can be asked there, and how. Does not import zenoh."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from istos_worker.errors import IstosError
from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.keys import owner_key, prefix_of, verb_key
from istos_worker.wire.local_blocking import BlockingConnection
from istos_worker.wire.local_frames import (
    GREETING,
    GREETING_S,
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    FrameDecoder,
    FrameError,
    decode_answer,
    encode_question,
)
from istos_worker.wire.local_socket import connected_to

log = logging.getLogger(__name__)

_MAX_PAYLOAD_BYTES = MAX_QUESTION_BYTES // 2
"""The rest is for parameters and attachment. A longer one goes over the mesh."""
_BUSY_S = 1.0
_UNREACHABLE_S = 30.0
"""How soon an owner is asked for `info` again, when its socket did not take us in at once, or not at all."""
_IDLE_S = 5.0


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
        if "*" in key or key == verb_key(prefix, "info"):
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


class Losses(Protocol):
    """Who is to know that a connection does not serve any more: LocalConnections."""

    def lose(self, connection: LocalConnection, prefix: str) -> None: ...

    def broken(self, connection: LocalConnection) -> None: ...


class LocalConnection(asyncio.Protocol):
    """One from this process's event loop, shared by all that asks from there; and for threads without a loop one each,
    as long as they ask."""

    def __init__(self, name: str, connections: Losses) -> None:
        self.name = name
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._greeting = b""
        self._decoder = FrameDecoder(MAX_ANSWER_BYTES)
        self._transport: asyncio.Transport
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._idle: deque[tuple[BlockingConnection, float]] = deque()
        """And since when; the oldest first."""
        self._waiting: dict[BlockingConnection, str] = {}
        """And for which queue's owner."""
        self._is_tended = False
        self._full_until = 0.0

    @classmethod
    async def open(cls, name: str, connections: Losses) -> LocalConnection:
        """Raises OSError, TimeoutError among them, or FrameError when there is no such owner to be had."""
        sock = connected_to(name)
        loop = asyncio.get_running_loop()
        transport, made = await loop.create_unix_connection(lambda: cls(name, connections), sock=sock)
        try:
            async with asyncio.timeout(GREETING_S):
                await made._greeted
        except BaseException:
            transport.abort()
            raise
        return made

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def ask(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> asyncio.Future[bytes | None]:
        """As Session.ask."""
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        question = encode_question(number, key, params, payload, attachment)
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._time_out, number)
        self._asked[number] = _Asked(key, future, timer)
        self._transport.write(question)
        return future

    def _time_out(self, number: int) -> None:
        asked = self._asked.pop(number)
        self._connections.lose(self, prefix_of(asked.key))
        if not asked.future.done():
            asked.future.set_exception(TimeoutError())

    @property
    def takes_threads(self) -> bool:
        """Whether there is a connection for a thread, or may be: an owner that has enough of them wants no more."""
        return bool(self._idle) or time.monotonic() >= self._full_until

    def ask_and_wait(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> bytes | None:
        """As Session.ask_and_wait. Each thread takes an idle connection, or makes one, and leaves it for the next."""
        prefix, until = prefix_of(key), time.monotonic() + timeout_s
        connection = self._taken(timeout_s)
        if connection is None:
            return None
        reply: bytes | None = None
        self._waiting[connection] = prefix
        try:
            reply = connection.ask(key, params, payload, attachment, until)
        finally:
            self._put_back(connection)
            if reply is None:
                self._connections.lose(self, prefix)
        return reply

    def _taken(self, within_s: float) -> BlockingConnection | None:
        """Raises TimeoutError when the owner is there and does not greet."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()[0]
        try:
            return BlockingConnection(self.name, within_s)
        except TimeoutError:
            raise
        except (OSError, FrameError) as refused:
            log.debug("local socket %s takes no more threads: %s", self.name, refused)
            self._full_until = time.monotonic() + _UNREACHABLE_S
            return None

    def _put_back(self, connection: BlockingConnection) -> None:
        now = time.monotonic()
        self._waiting.pop(connection, None)
        if connection.is_open:
            self._idle.append((connection, now))
        if not self.is_open:
            self._close_idle(since=now)
        elif not self._is_tended:
            self._is_tended = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is everything soon
                self._loop.call_soon_threadsafe(self._tend)

    def _tend(self) -> None:
        """Closes the connections of threads that ask no more, or less often."""
        self._close_idle(since=time.monotonic() - _IDLE_S)
        self._is_tended = bool(self._idle or self._waiting)
        if self._is_tended and self.is_open:
            self._loop.call_later(_IDLE_S, self._tend)

    def _close_idle(self, since: float) -> None:
        with contextlib.suppress(IndexError):
            while self._idle[0][1] <= since:
                self._idle.popleft()[0].close()

    def leave(self, prefix: str) -> None:
        """The open questions to this queue's owner end without an answer, and no others are sent."""
        self._connections.lose(self, prefix)
        for number in [number for number, asked in self._asked.items() if prefix_of(asked.key) == prefix]:
            self._asked.pop(number).answer(None)
        for connection, asked_for in list(self._waiting.items()):
            if asked_for == prefix:
                connection.interrupt()

    # --- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            if not self._greeted.done():
                data = self._after_greeting(data)
            for frame in self._decoder.feed(data):
                self._take(*decode_answer(frame))
        except FrameError as broken:
            if self._greeted.done():
                log.warning("local socket %s is left: %s", self.name, broken)
            else:
                self._greeted.set_exception(broken)
            self.abort()

    def _after_greeting(self, data: bytes) -> bytes:
        """What comes after it. Raises FrameError for another one."""
        self._greeting += data
        if not GREETING.startswith(self._greeting[: len(GREETING)]):
            raise FrameError(f"it does not greet as an owner of this version does: {self._greeting[:40]!r}")
        if len(self._greeting) >= len(GREETING):
            self._greeted.set_result(None)
        return self._greeting[len(GREETING) :]

    def _take(self, number: int, reply: bytes | None) -> None:
        asked = self._asked.pop(number, None)
        if asked is None:  # nobody waits any more
            return
        if reply is None:
            self._connections.lose(self, prefix_of(asked.key))
        asked.answer(reply)

    def connection_lost(self, failure: Exception | None) -> None:
        self._connections.broken(self)
        self._close_idle(since=time.monotonic())
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionError("the owner hung up"))
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.answer(None)

    def abort(self) -> None:
        """Every open question ends without an answer."""
        self._transport.abort()


class _Asked:
    __slots__ = ("_timer", "future", "key")

    def __init__(self, key: str, future: asyncio.Future[bytes | None], timer: asyncio.TimerHandle) -> None:
        self.key = key
        self.future = future
        self._timer = timer

    def answer(self, reply: bytes | None) -> None:
        self._timer.cancel()
        if not self.future.done():
            self.future.set_result(reply)
