"""A connection to an owner's local socket for a thread that waits: one question at a time, no event loop. Does not
import zenoh."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import time

from istos_worker.wire.local_frames import (
    GREETING,
    GREETING_S,
    MAX_ANSWER_BYTES,
    Answer,
    FrameDecoder,
    FrameError,
    decode_answer,
    encode_question,
)
from istos_worker.wire.local_socket import connected_to

log = logging.getLogger(__name__)

_RECEIVED_BYTES = 1 << 16
_LOOKS_UP = struct.pack("ll", 0, 50_000)
"""How long a call stays in the kernel before it looks at its deadline, as a timeval (socket(7), SO_RCVTIMEO). So a trip
is two calls to the system; with a timeout of Python's it is six. A call that a signal interrupts begins anew."""


class BlockingConnection:
    """Use it from one thread at a time. It closes after anything but an answer."""

    def __init__(self, name: str, within_s: float) -> None:
        """Raises OSError, TimeoutError among them, or FrameError when there is no such owner to be had."""
        self._name = name
        self._socket = connected_to(name)
        self._decoder = FrameDecoder(MAX_ANSWER_BYTES)
        try:
            self._socket.setblocking(True)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _LOOKS_UP)
            self._wait_for_greeting(min(within_s, GREETING_S))
        except BaseException:
            self.close()
            raise

    def _wait_for_greeting(self, within_s: float) -> None:
        until, said = time.monotonic() + within_s, b""
        while len(said) < len(GREETING) and (piece := self._received(len(GREETING) - len(said), until)):
            said += piece
        if said != GREETING:
            raise FrameError(f"it does not greet as an owner of this version does: {said!r}")

    def ask(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, until: float
    ) -> bytes | None:
        """As Session.ask_and_wait. `until`: on time.monotonic()."""
        answer: Answer | None = None
        try:
            self._send(encode_question(0, key, params, payload, attachment), until)
            answer = self._answer(until)
        except TimeoutError:
            raise
        except (OSError, FrameError) as broken:
            log.debug("local socket %s is left: %s", self._name, broken)
        finally:
            if answer is None:
                self.close()  # one that comes late would be taken for the next question's
        return None if answer is None else answer.reply

    def _answer(self, until: float) -> Answer | None:
        while piece := self._received(_RECEIVED_BYTES, until):
            if frames := self._decoder.feed(piece):
                return decode_answer(frames[0])
        return None

    def _send(self, question: bytes, until: float) -> None:
        sent = 0
        while sent < len(question):
            try:
                sent += self._socket.send(memoryview(question)[sent:] if sent else question)
            except BlockingIOError:
                _look_up(until)

    def _received(self, most: int, until: float) -> bytes:
        while True:
            try:
                return self._socket.recv(most)
            except BlockingIOError:
                _look_up(until)

    def interrupt(self) -> None:
        """From another thread: whoever waits here gets None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._socket.close()


def _look_up(until: float) -> None:
    if time.monotonic() >= until:
        raise TimeoutError
