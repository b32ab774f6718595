"""What the supervisor offers to the outside while it runs: control socket, endpoint, systemd."""

from __future__ import annotations

import contextlib
import os
import socket
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from supervisor.control import Control
from supervisor.desk import Desk
from supervisor.endpoint import Endpoint
from supervisor.ground import Ground
from supervisor.hooks import Hooks
from supervisor.notify import Notifier
from supervisor.picture import Picture


class Refused(Exception):  # noqa: N818
    """The fleet must not start: another one holds the socket, a port is taken, a disk is full."""


class Services:
    """A context manager; leaves nothing behind on disk."""

    def __init__(self, *, ground: Ground, hooks: Hooks, picture: Picture, desk: Desk) -> None:
        self._ground = ground
        self._hooks = hooks
        self._picture = picture
        self._desk = desk
        self._stack = contextlib.AsyncExitStack()
        self._notifier = Notifier.from_environment()

    async def __aenter__(self) -> Self:
        """Raises Refused, and leaves nothing."""
        settings, names = self._ground.settings, self._ground.settings.names
        try:
            if settings.control is not None:
                control = Control(settings.control, picture=self._picture.take, desk=self._desk)
                await self._open(control, f"{names.control} {settings.control}")
            if settings.endpoint is not None:
                host, port = settings.endpoint
                endpoint = Endpoint(host, port, picture=self._picture, metrics=self._hooks.metrics)
                await self._open(endpoint, f"{names.endpoint} {host}:{port}")
        except Refused:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def tell(self, state: str, now: float) -> None:
        """To systemd, if it asked for it."""
        if self._notifier is not None:
            self._notifier.tell(state, self._desk.reloads_asked, self._picture.glance, now)

    def next_word(self, now: float) -> float:
        """When systemd must hear from us again."""
        return now + 3600.0 if self._notifier is None else self._notifier.next_word(now)

    async def _open(self, service: AbstractAsyncContextManager[object], what: str) -> None:
        try:
            await self._stack.enter_async_context(service)
        except OSError as error:
            raise Refused(f"{what}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """asyncio wraps the system's words in its own, with the address once more."""
    if isinstance(error, socket.gaierror) or error.errno is None or error.filename is not None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
