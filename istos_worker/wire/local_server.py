"""An owner's local socket: processes of its own machine and user ask it here, without the mesh's threads in between
(docs/decisions/local-socket.md). Serves keys; knows no queues. Does not import zenoh."""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
import socket
import sys
from collections.abc import Callable
from itertools import groupby
from typing import cast

from istos_worker.wire.asking import Incoming
from istos_worker.wire.local_frames import (
    GREETING,
    MAX_QUESTION_BYTES,
    FrameDecoder,
    FrameError,
    Question,
    decode_question,
    encode_answer,
)
from istos_worker.wire.local_socket import bound_to, is_same_user

log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE = 16

Take = Callable[[list[Incoming]], None]


class LocalServer:
    """Listens from `open` to `close`; while it does, whoever is given its `name` may ask for the keys it serves."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._takes: dict[str, Take] = {}
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = sys.maxsize if descriptors == resource.RLIM_INFINITY else descriptors // 2
        """Of descriptors in use; the others are for the mesh, where everybody else can ask."""

    async def open(self) -> None:
        """Raises OSError where such sockets are not to be had."""
        loop = asyncio.get_running_loop()
        listening = bound_to(self.name)
        self._server = await loop.create_unix_server(
            lambda: _Connection(self), sock=listening, backlog=_ACCEPTED_AT_ONCE
        )
        listening.listen(socket.SOMAXCONN)  # who may wait; asyncio's backlog is both

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def has_room_for(self, descriptor: int) -> bool:
        """False too for those who were on their way when it closed. A new descriptor is the lowest that is free."""
        return self.is_open and descriptor < self._most

    def serve(self, key: str, take: Take) -> None:
        self._takes[key] = take

    def withdraw(self, key: str, take: Take) -> None:
        """Whoever asks for it is told that nobody serves it here, unless somebody else has begun to. The last one
        closes the socket."""
        if self._takes.get(key) is take:
            del self._takes[key]
        if not self._takes:
            self.close()

    def close(self) -> None:
        """Nobody new may ask; who has asked is answered, then the connection ends. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._connections):
            connection.close()

    def abort(self) -> None:
        """As `close`, and whoever still waits for an answer sees that we are gone."""
        self.close()
        for connection in list(self._connections):
            connection.abort()

    # --- for its connections -----------------------------------------------------------------------

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def take(self, connection: _Connection, questions: list[Question]) -> None:
        for key, asked in groupby(questions, key=lambda question: question.key):
            queries: list[Incoming] = [LocalQuery(self.name, connection, question) for question in asked]
            take = self._takes.get(key)
            if take is not None:
                take(queries)
                continue
            for query in queries:
                query.drop()


class LocalQuery:
    """As Incoming, at the local socket."""

    __slots__ = ("_connection", "_number", "attachment", "key", "local_name", "params", "payload")

    is_exact = True

    def __init__(self, local_name: str, connection: _Connection, question: Question) -> None:
        self._connection: _Connection | None = connection
        self._number, self.key, self.params, self.payload, self.attachment = question
        self.local_name = local_name

    def reply(self, payload: bytes) -> None:
        self._answer(payload)

    def drop(self) -> None:
        self._answer(None)

    def _answer(self, reply: bytes | None) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.answer(encode_answer(self._number, reply))


class _Connection(asyncio.Protocol):
    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._decoder = FrameDecoder(MAX_QUESTION_BYTES)
        self._transport: asyncio.Transport
        self._unanswered = 0
        self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        accepted = transport.get_extra_info("socket")
        if not self._server.has_room_for(accepted.fileno()):
            self.abort()
            return
        if not is_same_user(accepted):
            log.warning("somebody else's process was refused at this owner's local socket")
            self.abort()
            return
        self._server.joined(self)
        self._transport.write(GREETING)

    def connection_lost(self, failure: Exception | None) -> None:
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        try:
            questions = [decode_question(frame) for frame in self._decoder.feed(data)]
        except FrameError as broken:
            log.warning("a connection to this owner's local socket is closed: %s", broken)
            self.abort()
            return
        self._unanswered += len(questions)
        self._server.take(self, questions)

    def pause_writing(self) -> None:
        self._transport.pause_reading()  # who does not take answers asks nothing more

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def answer(self, frame: bytes) -> None:
        self._unanswered -= 1
        if not self._transport.is_closing():
            self._transport.write(frame)
            if self._is_closing:
                self.close()

    def close(self) -> None:
        """Once all that was asked is answered."""
        self._is_closing = True
        if not self._unanswered:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
