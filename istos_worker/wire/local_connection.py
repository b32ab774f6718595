"""One connection to an owner's local socket, from an event loop and the threads beside it. Does not import zenoh."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Protocol, cast

from istos_worker.wire.keys import prefix_of
from istos_worker.wire.local_blocking import BlockingConnection
from istos_worker.wire.local_frames import (
    GREETING,
    GREETING_S,
    MAX_ANSWER_BYTES,
    FrameDecoder,
    FrameError,
    decode_answer,
    encode_question,
)
from istos_worker.wire.local_socket import connected_to

log = logging.getLogger(__name__)

_IDLE_S = 5.0
_FULL_S = 30.0
"""How long an owner that took no more connections of threads is asked for none."""


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
            self._full_until = time.monotonic() + _FULL_S
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
