"""The calls an app makes as a producer, with peer 0.3's names and defaults. Each is the client's of that name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from istos_worker.client.bodies import OnFailure, Serializes
from istos_worker.client.client import Client, DeadLetter, Outcome
from istos_worker.client.producer import Token


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

    async def enqueue(
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
        """Puts a job on the queue and returns its id. `delay_s` holds it back; of two ready jobs the one with
        the higher `priority` goes first. Raises OwnerUnreachable when no owner answers in `timeout_s`."""
        return await self.client.enqueue(
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

    async def enqueue_many(
        self,
        prefix: str,
        items: Iterable[Any],
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        job_id: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> list[str]:
        """All items or none, up to 1000 of them; see `Client.enqueue_many`."""
        return await self.client.enqueue_many(
            prefix,
            items,
            delay_s=delay_s,
            priority=priority,
            serializer=serializer,
            token=token,
            timeout_s=timeout_s,
            job_id=job_id,
            max_attempts=max_attempts,
            expires_s=expires_s,
        )

    async def chain(
        self,
        prefixes: Sequence[str],
        data: Any,
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
    ) -> str:
        """Runs queues in sequence, each fed what the one before it returned. Returns the first job's id."""
        return await self.client.chain(prefixes, data, priority=priority, serializer=serializer, token=token)

    async def group(
        self,
        prefix: str,
        items: Iterable[Any],
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
    ) -> list[str]:
        """Puts a batch of jobs on one queue and returns their ids."""
        return await self.client.group(prefix, items, priority=priority, serializer=serializer, token=token)

    async def chord(
        self,
        prefix: str,
        items: Iterable[Any],
        callback: tuple[str, Any],
        *,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        on_failure: OnFailure | None = None,
    ) -> list[str]:
        """A group and, once all of it succeeded, a job on `callback`'s queue; see `Client.chord`."""
        return await self.client.chord(
            prefix,
            items,
            callback,
            priority=priority,
            serializer=serializer,
            token=token,
            on_failure=on_failure,
        )

    async def result(
        self,
        prefix: str,
        job_id: str,
        *,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        wait_s: float = 0.0,
    ) -> Outcome:
        """`{"state", "result"}`; with `wait_s`, once the job is finished or that time is over."""
        return await self.client.result(
            prefix, job_id, serializer=serializer, token=token, timeout_s=timeout_s, wait_s=wait_s
        )

    async def dead_letters(
        self,
        prefix: str,
        *,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        return await self.client.dead_letters(
            prefix, serializer=serializer, token=token, timeout_s=timeout_s, limit=limit
        )

    async def dead_requeue(
        self, prefix: str, job_id: str | None = None, *, token: Token = None, timeout_s: float = 5.0
    ) -> int:
        return await self.client.dead_requeue(prefix, job_id, token=token, timeout_s=timeout_s)

    async def dead_purge(
        self, prefix: str, job_id: str | None = None, *, token: Token = None, timeout_s: float = 5.0
    ) -> int:
        return await self.client.dead_purge(prefix, job_id, token=token, timeout_s=timeout_s)

    async def cancel(
        self, prefix: str, job_id: str, *, token: Token = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        return await self.client.cancel(prefix, job_id, token=token, timeout_s=timeout_s)

    async def pause(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> None:
        await self.client.pause(prefix, token=token, timeout_s=timeout_s)

    async def resume(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> None:
        await self.client.resume(prefix, token=token, timeout_s=timeout_s)

    async def stats(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> dict[str, Any]:
        return await self.client.stats(prefix, token=token, timeout_s=timeout_s)
