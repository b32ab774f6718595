"""The asking side of an owner's local socket: which queues can be asked there, and how. Does not import zenoh."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import cast

from istos_worker.errors import IstosError
from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.frames import (
    GREETING,
    MAX_ANSWER,
    MAX_QUESTION,
    Cutter,
    FrameError,
    decode_answer,
    encode_question,
)
from istos_worker.wire.local_name import connected_to
from istos_worker.wire.local_waiting import GREETING_S, WaitingLine

log = logging.getLogger(__name__)

_MAX_BODY = MAX_QUESTION // 2
"""The rest is for parameters. A longer one goes over the mesh."""


class LocalLines:
    """The queues whose owners can be asked directly, as their `info` says. A queue whose line was lost is asked over
    the mesh, and its owner, which may be another one by then, for `info` once more."""

    def __init__(self, mesh: Asks, loop: asyncio.AbstractEventLoop) -> None:
        self._mesh = mesh
        self._loop = loop
        self._by_prefix: dict[str, LocalLine] = {}
        self._by_name: dict[str, LocalLine] = {}
        self._lost: set[str] = set()
        self._looking: set[asyncio.Future[bytes | None]] = set()

    def to(self, key: str, payload: bytes | None, attachment: bytes | None) -> LocalLine | None:
        """The line to whoever serves `key`, if there is one and it can carry that much. A pattern is the mesh's.
        From any thread."""
        prefix = _prefix_of(key)
        line = self._by_prefix.get(prefix)
        if line is None:
            if prefix in self._lost:
                self._lost.discard(prefix)
                self._loop.call_soon_threadsafe(self._look, prefix, attachment)
            return None
        return None if "*" in key or (payload is not None and len(payload) > _MAX_BODY) else line

    def _look(self, prefix: str, attachment: bytes | None) -> None:
        looking = self._mesh.ask(f"{prefix}/info", attachment=attachment)
        self._looking.add(looking)
        looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Future[bytes | None]) -> None:
        self._looking.discard(looking)
        if not looking.cancelled():
            looking.exception()  # nobody there: whoever asks next finds that too

    async def meet(self, prefix: str, info: bytes) -> None:
        """Opens the line that the owner's `info` offers, if it can be reached from here."""
        name = _offered(info)
        known = self._by_prefix.get(prefix)
        if known is not None and known.name == name and known.is_open:
            return
        self._by_prefix.pop(prefix, None)
        try:
            line = None if name is None else await self._line(name)
        except (OSError, TimeoutError, FrameError) as failed:
            log.debug("the owner of %s is asked over the mesh only: %s", prefix, failed)
            return
        if line is not None and line.is_open:
            self._lost.discard(prefix)
            self._by_prefix[prefix] = line

    async def _line(self, name: str) -> LocalLine:
        known = self._by_name.get(name)
        if known is not None:
            return known
        made = await LocalLine.open(name, self)
        line = self._by_name.setdefault(name, made)
        if line is not made:  # another queue of the same owner was faster
            made.close()
        return line

    def lose(self, prefix: str) -> None:
        """Its owner did not answer there: it is asked over the mesh until its next `info`."""
        if self._by_prefix.pop(prefix, None) is not None:
            self._lost.add(prefix)

    def broken(self, line: LocalLine) -> None:
        if self._by_name.get(line.name) is line:
            del self._by_name[line.name]
        for prefix in [prefix for prefix, other in self._by_prefix.items() if other is line]:
            self.lose(prefix)

    def close(self) -> None:
        for line in list(self._by_name.values()):
            line.close()


def _prefix_of(key: str) -> str:
    return key[: key.rfind("/")]


def _offered(info: bytes) -> str | None:
    try:
        name = decode_reply(info).get("local")
    except IstosError:
        return None
    return name if isinstance(name, str) else None


class LocalLine(asyncio.Protocol):
    """One connection from this process's event loop, shared by all that asks from there; and for threads without a
    loop, one each as long as they ask."""

    def __init__(self, name: str, lines: LocalLines) -> None:
        self.name = name
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._greeting = b""
        self._cutter = Cutter(MAX_ANSWER)
        self._transport: asyncio.Transport
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._idle: deque[WaitingLine] = deque()

    @classmethod
    async def open(cls, name: str, lines: LocalLines) -> LocalLine:
        """Raises OSError, TimeoutError or FrameError when there is no such owner to be had."""
        sock = connected_to(name)
        loop = asyncio.get_running_loop()
        transport, line = await loop.create_unix_connection(lambda: cls(name, lines), sock=sock)
        try:
            async with asyncio.timeout(GREETING_S):
                await line._greeted
        except BaseException:
            transport.abort()
            raise
        return line

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def ask(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> asyncio.Future[bytes | None]:
        """As Session.ask."""
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        future: asyncio.Future[bytes | None] = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._silent, number)
        self._asked[number] = _Asked(key, future, timer)
        self._transport.write(encode_question(number, key, params, payload, attachment))
        return future

    def ask_and_wait(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> bytes | None:
        """As Session.ask_and_wait. Each thread takes an idle connection, or makes one, and leaves it for the next."""
        reply: bytes | None = None
        try:
            line = self._idle_line()
            if line is not None:
                reply = line.ask(key, params, payload, attachment, timeout_s)
                self._put_by(line)
        finally:
            if reply is None:
                self._lines.lose(_prefix_of(key))
        return reply

    def _idle_line(self) -> WaitingLine | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        with contextlib.suppress(OSError, FrameError):
            return WaitingLine(self.name)
        return None

    def _put_by(self, line: WaitingLine) -> None:
        if line.is_open:
            self._idle.append(line)
        if not self.is_open:
            self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _silent(self, number: int) -> None:
        asked = self._asked.pop(number)
        self._lines.lose(_prefix_of(asked.key))
        if not asked.future.done():
            asked.future.set_exception(TimeoutError())

    # --- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            if not self._greeted.done():
                data = self._welcome(data)
            for frame in self._cutter.cut(data):
                self._take(*decode_answer(frame))
        except FrameError as broken:
            log.warning("an owner's local socket is left: %s", broken)
            self._transport.abort()

    def _welcome(self, data: bytes) -> bytes:
        """What comes after the greeting. Raises FrameError."""
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
            self._lines.lose(_prefix_of(asked.key))
        asked.answered(reply)

    def connection_lost(self, failure: Exception | None) -> None:
        self._lines.broken(self)
        self._close_idle()
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionError("the owner hung up"))
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.answered(None)

    def close(self) -> None:
        self._transport.abort()


class _Asked:
    __slots__ = ("_timer", "future", "key")

    def __init__(self, key: str, future: asyncio.Future[bytes | None], timer: asyncio.TimerHandle) -> None:
        self.key = key
        self.future = future
        self._timer = timer

    def answered(self, reply: bytes | None) -> None:
        self._timer.cancel()
        if not self.future.done():
            self.future.set_result(reply)
