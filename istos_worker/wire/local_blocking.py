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
_TIMEVAL = struct.Struct("ll")
_SHORTEST_S = 0.001


class BlockingConnection:
    """Use it from one thread at a time. It closes after anything but an answer."""

    def __init__(self, name: str, within_s: float) -> None:
        """Raises OSError, TimeoutError among them, or FrameError when there is no such owner to be had."""
        self._name = name
        self._socket = connected_to(name)
        self._socket.setblocking(True)
        self._allowed_s = 0.0
        self._decoder = FrameDecoder(MAX_ANSWER_BYTES)
        try:
            self._wait_for_greeting(min(within_s, GREETING_S))
        except BaseException:
            self.close()
            raise

    def _wait_for_greeting(self, within_s: float) -> None:
        self._allow(within_s)
        said = b""
        while len(said) < len(GREETING) and (piece := self._received(len(GREETING) - len(said))):
            said += piece
        if said != GREETING:
            raise FrameError(f"it does not greet as an owner of this version does: {said!r}")

    def ask(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> bytes | None:
        """As Session.ask_and_wait."""
        answer: Answer | None = None
        try:
            self._allow(timeout_s)
            self._socket.sendall(encode_question(0, key, params, payload, attachment))
            answer = self._answer(time.monotonic() + timeout_s)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError from None
        except (OSError, FrameError) as broken:
            log.debug("local socket %s is left: %s", self._name, broken)
        finally:
            if answer is None:
                self.close()  # one that comes late would be taken for the next question's
        return None if answer is None else answer.reply

    def _answer(self, until: float) -> Answer | None:
        while piece := self._received(_RECEIVED_BYTES):
            if frames := self._decoder.feed(piece):
                return decode_answer(frames[0])
            self._allow(until - time.monotonic())
        return None

    def _received(self, most: int) -> bytes:
        try:
            return self._socket.recv(most)
        except BlockingIOError:
            raise TimeoutError from None

    def _allow(self, seconds: float) -> None:
        """How long one call may take from now on. By the kernel's timeouts: with Python's each call is three."""
        if seconds == self._allowed_s:
            return
        self._allowed_s = seconds
        whole_s, part_s = divmod(max(seconds, _SHORTEST_S), 1)
        allowed = _TIMEVAL.pack(int(whole_s), int(part_s * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, allowed)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, allowed)

    def interrupt(self) -> None:
        """From another thread: whoever waits here gets None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._socket.close()
