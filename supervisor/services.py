"""What the supervisor offers to the outside while it runs: pidfile, control socket, endpoint, systemd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from supervisor.control import Control
from supervisor.desk import Desk
from supervisor.endpoint import Endpoint
from supervisor.ground import Ground
from supervisor.hooks import Hooks
from supervisor.notify import Notifier
from supervisor.pidfile import Pidfile
from supervisor.status import Status


class Refused(Exception):  # noqa: N818
    """The fleet must not start: another one holds the pidfile or socket, a port is taken."""


class Services:
    """A context manager; leaves nothing behind on disk."""

    def __init__(self, *, ground: Ground, hooks: Hooks, picture: Callable[[], Status], desk: Desk) -> None:
        self._ground = ground
        self._hooks = hooks
        self._picture = picture
        self._desk = desk
        self._stack = contextlib.AsyncExitStack()
        self._notifier = Notifier.from_environment()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except OSError as error:
            await self._stack.aclose()
            raise Refused(str(error)) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def tell(self, state: str) -> None:
        """To systemd, if it asked for it."""
        if self._notifier is not None:
            self._notifier.tell(state, self._picture)

    async def _open(self) -> None:
        settings = self._ground.settings
        if settings.pidfile is not None:
            self._stack.enter_context(Pidfile(settings.pidfile))
        if settings.control is not None:
            control = Control(settings.control, picture=self._picture, desk=self._desk)
            await self._stack.enter_async_context(control)
        if settings.endpoint is not None:
            endpoint = Endpoint(*settings.endpoint, picture=self._picture, metrics=self._hooks.metrics)
            await self._stack.enter_async_context(endpoint)
