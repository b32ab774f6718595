"""One connection to an owner's local socket for a thread that waits: one question at a time, no event loop. Does not
import zenoh."""

from __future__ import annotations

import logging
import time

from istos_worker.wire.frames import GREETING, MAX_ANSWER, Cutter, FrameError, decode_answer, encode_question
from istos_worker.wire.local_name import connected_to

log = logging.getLogger(__name__)

GREETING_S = 1.0
"""How long an owner that has just answered may take to greet."""
_PIECE = 1 << 16


class WaitingLine:
    """Use it from one thread at a time. After anything but an answer it is closed."""

    def __init__(self, name: str) -> None:
        """Raises OSError, TimeoutError or FrameError when there is no such owner to be had."""
        self._socket = connected_to(name)
        self._cutter = Cutter(MAX_ANSWER)
        try:
            self._greeted()
        except BaseException:
            self.close()
            raise

    def _greeted(self) -> None:
        self._socket.settimeout(GREETING_S)
        said = b""
        while len(said) < len(GREETING) and (piece := self._socket.recv(len(GREETING) - len(said))):
            said += piece
        if said != GREETING:
            raise FrameError(f"it does not greet as an owner of this version does: {said!r}")

    def ask(
        self, key: str, params: str, payload: bytes | None, attachment: bytes | None, timeout_s: float
    ) -> bytes | None:
        """As Session.ask_and_wait."""
        until = time.monotonic() + timeout_s
        question = encode_question(0, key, params, payload, attachment)
        is_answered = False
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(question)
            while piece := self._socket.recv(_PIECE):
                for frame in self._cutter.cut(piece):
                    is_answered = True
                    return decode_answer(frame).reply
                self._socket.settimeout(max(until - time.monotonic(), 0.001))
        except TimeoutError:
            raise
        except (OSError, FrameError) as failed:
            log.debug("an owner's local socket is left: %s", failed)
        finally:
            if not is_answered:
                self.close()  # an answer that comes late would be taken for the next one's
        return None

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._socket.close()
