"""sd_notify(3), in a page: READY, RELOADING, STOPPING, STATUS, WATCHDOG."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.status import Status

_STATUS_EVERY_S = 5.0
_WORDS_PER_WATCH = 3  # sd_watchdog_enabled(3) asks for more than two


@dataclass(slots=True, kw_only=True)
class Notifier:
    """`watchdog_s` None: systemd does not watch. Never blocks; what cannot be sent is dropped."""

    address: str
    watchdog_s: float | None = None
    _state: str = "starting"
    _reloads_asked: int = 0
    _status_at: float = float("-inf")
    _watchdog_at: float = float("-inf")

    @classmethod
    def from_environment(cls) -> Notifier | None:
        """Takes the variables out of the environment: the workers are not the service's main process."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        microseconds = os.environ.pop("WATCHDOG_USEC", None)
        watched_pid = os.environ.pop("WATCHDOG_PID", None)
        if not address:
            return None
        watched = microseconds is not None and watched_pid in (None, str(os.getpid()))
        return cls(address=address, watchdog_s=int(microseconds or 0) / 1e6 if watched else None)

    def tell(self, state: str, reloads_asked: int, picture: Callable[[], Status], now: float) -> None:
        """`reloads_asked`: so far. systemd waits for RELOADING and READY after each, also after an echo, and after one
        that failed at once."""
        asked, self._reloads_asked = reloads_asked != self._reloads_asked, reloads_asked
        if asked and self._state != "starting" and state != "stopping":
            # A message of its own: READY in the same one would contradict it. With the time, so that an old READY is
            # not taken for this reload's (Type=notify-reload).
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self._state = "reloading"
        lines = _transition(self._state, state)
        changed = state != self._state
        self._state = state
        if changed or now - self._status_at > _STATUS_EVERY_S:
            self._status_at = now
            lines.append(f"STATUS={_sentence(picture())}")
        if self.watchdog_s is not None and now >= self._watchdog_at + self.watchdog_s / _WORDS_PER_WATCH:
            self._watchdog_at = now
            lines.append("WATCHDOG=1")
        if lines:
            self._send("\n".join(lines))

    def next_word(self, now: float) -> float:
        """When the watchdog must be told again at the latest."""
        if self.watchdog_s is None:
            return now + 3600.0
        return max(self._watchdog_at, now - self.watchdog_s) + self.watchdog_s / _WORDS_PER_WATCH

    def _send(self, text: str) -> None:
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), address)


def _transition(old: str, new: str) -> list[str]:
    match (old, new):
        case (same, also) if same == also:
            return []
        case (_, "stopping"):
            return ["STOPPING=1"]
        case ("starting" | "reloading", "running" | "quiet"):
            return ["READY=1"]
        case _:
            return []


def _sentence(status: Status) -> str:
    ready = sum(worker.stage == "ready" for worker in status.workers)
    busy = sum(worker.busy for worker in status.workers)
    slots = sum(worker.slots for worker in status.workers)
    return (
        f"{status.state}, gen {status.generation}: {ready}/{status.procs} workers ready, {busy}/{slots} busy"
    )
