"""The calls an app makes as a producer. Each is the client's of that name, with its parameters and its words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from istos_worker.client.client import Client

P = ParamSpec("P")
R = TypeVar("R")


def _of_client(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AppCalls, P], Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def call(app: AppCalls, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await method(app.client, *args, **kwargs)

    return call


class AppCalls:
    """Needs an open client: inside `serving()` or `connected()`, or in a worker of this app."""

    _client: Client | None = None

    @property
    def client(self) -> Client:
        """Raises RuntimeError when the app is not connected."""
        if self._client is None:
            raise RuntimeError(
                "the app is not connected: call this inside `async with app.serving()` (owners and workers "
                "too) or `async with app.connected()` (a producer only); code without an event loop uses "
                "istos_worker.SyncClient"
            )
        return self._client

    enqueue = _of_client(Client.enqueue)
    enqueue_many = _of_client(Client.enqueue_many)
    chain = _of_client(Client.chain)
    group = _of_client(Client.group)
    chord = _of_client(Client.chord)
    result = _of_client(Client.result)
    dead_letters = _of_client(Client.dead_letters)
    dead_requeue = _of_client(Client.dead_requeue)
    dead_purge = _of_client(Client.dead_purge)
    cancel = _of_client(Client.cancel)
    pause = _of_client(Client.pause)
    resume = _of_client(Client.resume)
    stats = _of_client(Client.stats)
