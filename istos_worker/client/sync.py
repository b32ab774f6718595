"""The client for code without an event loop: views of Django and Flask, scripts, threads. One background thread
runs the loop and the session; every method may be called from any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from istos_worker.client.batches import Batch, Params, new_job_id
from istos_worker.client.bodies import Serializes
from istos_worker.client.calls import first_try_s
from istos_worker.client.client import Client
from istos_worker.client.joining import ids_of
from istos_worker.client.producer import Token
from istos_worker.errors import IstosError
from istos_worker.wire.codec import decode_reply
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.settings import ZenohSettings

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    @functools.wraps(method)
    def call(client: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return client._started().run(lambda ours: method(ours, *args, **kwargs))

    return call


def _waiting(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """For a method that awaits nothing but its one request."""

    @functools.wraps(method)
    def call(client: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _returned(method(client._started().waiting, *args, **kwargs))

    return call


def _returned(coroutine: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that never has to wait for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: R = done.value
        return value
    raise RuntimeError("it waits for an event loop, and here is none")


class SyncClient:
    """`client = SyncClient()` at module level, `client.enqueue("jobs/email", {...})` in a view.

    Every method is the one of that name of `Client`, and returns when it has the answer. Nothing is started before
    the first call, so it may be made before a server forks its workers. A process that was forked after a call
    raises IstosError: Zenoh cannot be used on both sides of a fork.
    """

    def __init__(
        self,
        config: ZenohSettings | None = None,
        *,
        token: Token = None,
        serializer: Serializes | None = None,
    ) -> None:
        self._make = lambda: Client(config, token=token, serializer=serializer)
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sends what is on its way, closes the session and ends the thread. Idempotent; a later call opens
        it again."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None and running.pid == os.getpid():
            running.close()

    enqueue = _waiting(Client.enqueue)
    enqueue_many = _blocking(Client.enqueue_many)
    chain = _blocking(Client.chain)
    group = _blocking(Client.group)
    chord = _blocking(Client.chord)
    result = _blocking(Client.result)
    dead_letters = _blocking(Client.dead_letters)
    dead_requeue = _blocking(Client.dead_requeue)
    dead_purge = _blocking(Client.dead_purge)
    cancel = _blocking(Client.cancel)
    pause = _blocking(Client.pause)
    resume = _blocking(Client.resume)
    stats = _blocking(Client.stats)
    why = _blocking(Client.why)
    workers = _blocking(Client.workers)
    info = _blocking(Client.info)

    def _started(self) -> _Running:
        running = self._running
        if running is not None and running.pid == os.getpid() and running.is_alive:
            return running
        if running is not None and running.pid != os.getpid():
            # Whoever held the lock at the fork does not exist here and will never let it go.
            self._lock = threading.Lock()
            self._running = None
        with self._lock:
            if self._running is None or not self._running.is_alive:
                self._running = _Running(self._make)
            return self._running


class _WaitingClient(Client):
    """An open client for threads without a loop: an enqueue is sent and waited for in the thread that calls. What is
    not the usual case (no owner known or there, a peer's, a slow one) is left to the loop; the job's id makes it
    safe to send it again."""

    def __init__(self, opened: Client, patiently: Callable[[Batch, float, float], str]) -> None:
        vars(self).update(vars(opened))
        self._patiently = patiently

    async def _enqueue_body(
        self,
        prefix: str,
        body: bytes,
        params: Params,
        *,
        token: Token,
        timeout_s: float,
        job_id: str | None = None,
        wf: str | None = None,
    ) -> str:
        queue, attachment = queue_prefix(prefix), self._attachment(token)
        batch = Batch(queue, params, attachment, [body], [wf], job_id or new_job_id())
        begun, silent_s = time.monotonic(), 0.0
        if self._opened()[0].known_dialect(queue) == "extended":
            request = batch.request(sized=False)
            try:
                raw = self.session.ask_and_wait(
                    request.key,
                    request.params,
                    payload=request.payload,
                    attachment=request.attachment,
                    timeout_s=first_try_s(timeout_s),
                )
            except TimeoutError:
                raw, silent_s = None, time.monotonic() - begun
            if raw is not None:
                return ids_of(decode_reply(raw))[0]
        return self._patiently(batch, timeout_s, silent_s)


class _Running:
    """The thread with its loop and its open client."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self.pid = os.getpid()
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="istos-sync-client", daemon=True)
        self._thread.start()
        self._client = make()
        try:
            self.run(lambda client: client.open())
        except BaseException:
            self._end()
            raise
        self.waiting = _WaitingClient(self._client, self._deliver)

    def _deliver(self, batch: Batch, timeout_s: float, silent_s: float) -> str:
        return self.run(lambda client: client._opened()[1].deliver_one(batch, timeout_s, silent_s=silent_s))

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, ask: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        if threading.current_thread() is self._thread:
            raise RuntimeError("SyncClient cannot be called from its own thread")
        future = asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)
        try:
            return future.result()
        except (concurrent.futures.CancelledError, RuntimeError):
            if not self._is_closing:
                raise
            raise IstosError("this SyncClient was closed while it was asked") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        self._is_closing = True
        try:
            self.run(lambda client: client.aclose())
        finally:
            self._end()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            if left := asyncio.all_tasks(self._loop):  # somebody waits for each of them
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left))
        finally:
            self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
