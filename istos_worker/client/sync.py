"""The client for code without an event loop: views of Django and Flask, scripts, threads. One background thread
runs the loop and the session; every method may be called from any thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from istos_worker.client.bodies import OnFailure, Serializes
from istos_worker.client.client import Client, DeadLetter, Outcome
from istos_worker.client.producer import Token
from istos_worker.wire.settings import ZenohSettings

P = ParamSpec("P")
R = TypeVar("R")


class SyncClient:
    """`client = SyncClient()` at module level, `client.enqueue("jobs/email", {...})` in a view.

    Nothing is started before the first call, so it may be made before a server forks its workers. A process
    that was forked after a call raises IstosError: Zenoh cannot be used on both sides of a fork.
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

    def enqueue(
        self,
        prefix: str,
        data: Any,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        job_id: str | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> str:
        """As `Client.enqueue`; the same holds for every method here."""
        return self._call(
            lambda client: client.enqueue(
                prefix,
                data,
                delay_s=delay_s,
                priority=priority,
                serializer=serializer,
                token=token,
                timeout_s=timeout_s,
                job_id=job_id,
                unique_key=unique_key,
                max_attempts=max_attempts,
                expires_s=expires_s,
            )
        )

    def enqueue_many(self, prefix: str, items: Iterable[Any], **options: Any) -> list[str]:
        return self._call(lambda client: client.enqueue_many(prefix, items, **options))

    def chain(self, prefixes: Sequence[str], data: Any, **options: Any) -> str:
        return self._call(lambda client: client.chain(prefixes, data, **options))

    def group(self, prefix: str, items: Iterable[Any], **options: Any) -> list[str]:
        return self._call(lambda client: client.group(prefix, items, **options))

    def chord(
        self,
        prefix: str,
        items: Iterable[Any],
        callback: tuple[str, Any],
        *,
        on_failure: OnFailure | None = None,
        **options: Any,
    ) -> list[str]:
        return self._call(
            lambda client: client.chord(prefix, items, callback, on_failure=on_failure, **options)
        )

    def result(
        self,
        prefix: str,
        job_id: str,
        *,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        wait_s: float = 0.0,
    ) -> Outcome:
        return self._call(
            lambda client: client.result(
                prefix, job_id, serializer=serializer, token=token, timeout_s=timeout_s, wait_s=wait_s
            )
        )

    def dead_letters(self, prefix: str, **options: Any) -> list[DeadLetter]:
        return self._call(lambda client: client.dead_letters(prefix, **options))

    def dead_requeue(self, prefix: str, job_id: str | None = None, **options: Any) -> int:
        return self._call(lambda client: client.dead_requeue(prefix, job_id, **options))

    def dead_purge(self, prefix: str, job_id: str | None = None, **options: Any) -> int:
        return self._call(lambda client: client.dead_purge(prefix, job_id, **options))

    def cancel(self, prefix: str, job_id: str, **options: Any) -> dict[str, Any]:
        return self._call(lambda client: client.cancel(prefix, job_id, **options))

    def pause(self, prefix: str, **options: Any) -> None:
        self._call(lambda client: client.pause(prefix, **options))

    def resume(self, prefix: str, **options: Any) -> None:
        self._call(lambda client: client.resume(prefix, **options))

    def stats(self, prefix: str, **options: Any) -> dict[str, Any]:
        return self._call(lambda client: client.stats(prefix, **options))

    def why(self, prefix: str, job_id: str, **options: Any) -> dict[str, Any]:
        return self._call(lambda client: client.why(prefix, job_id, **options))

    def workers(self, prefix: str, **options: Any) -> list[dict[str, Any]]:
        return self._call(lambda client: client.workers(prefix, **options))

    def info(self, prefix: str, **options: Any) -> dict[str, Any]:
        return self._call(lambda client: client.info(prefix, **options))

    def _call(self, ask: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        return self._started().run(ask)

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


class _Running:
    """The thread with its loop and its open client."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="istos-sync-client", daemon=True)
        self._thread.start()
        self._client = make()
        try:
            self.run(lambda client: client.open())
        except BaseException:
            self._end()
            raise

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, ask: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        if threading.current_thread() is self._thread:
            raise RuntimeError("SyncClient cannot be called from its own thread")
        future = asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        try:
            self.run(lambda client: client.aclose())
        finally:
            self._end()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
