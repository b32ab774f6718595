"""The asyncio client of queues: every call a producer or an operator makes. Knows verbs and values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

from istos_worker.client.batches import new_job_id
from istos_worker.client.bodies import Serializes
from istos_worker.client.calls import Patience, Request
from istos_worker.client.producer import Producer, Token, _job_params
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.limits import MAX_WAIT_S

_LONGEST_HOLD_S = MAX_WAIT_S - 5.0
_HOLD_RESERVE_S = 5.0
_POLL_S = 0.1
_PAGE = 500
_FINISHED = frozenset(("done", "dead", "cancelled", "unknown"))


class HasJobId(Protocol):
    """What a task's `enqueue` returns, for one."""

    @property
    def job_id(self) -> str: ...


class Enqueued(TypedDict):
    """The job that is there now. `duplicate`: it was there before, and nothing was enqueued."""

    job_id: str
    duplicate: bool


class Outcome(TypedDict):
    """What became of a job: its state, and what its handler returned, where that is kept."""

    state: str
    result: Any


class DeadLetter(TypedDict):
    job_id: str
    attempts: int
    last_error: str | None
    data: Any


class Client(Producer):
    """`async with Client() as client: await client.enqueue("jobs/email", {...})`.

    Opens a session of its own unless it is given one, which it then leaves open. `token` is sent with every
    call that names none. Calls wait for an owner for `timeout_s` seconds and then raise OwnerUnreachable; a
    call that got no answer is repeated, and ids chosen here make the repeat harmless.
    """

    # --- enqueue, and what it came to --------------------------------------------------------------

    async def enqueue_once(
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
    ) -> Enqueued:
        """As `enqueue`, and tells whether the job was there already, by its `job_id` or its `unique_key`. A job
        that a lost reply made us send twice under your `job_id` looks like one that was; an istos 0.3 owner
        knows no duplicates."""
        queue, body, attachment = queue_prefix(prefix), self._body(data, serializer), self._attachment(token)
        params = _job_params(priority, delay_s, max_attempts, expires_s, unique_key)
        caller = self._opened()[0]
        if await caller.settled_dialect(queue, Patience(timeout_s), attachment) == "base":
            done = await self._enqueue_body(
                queue, body, params, token=token, timeout_s=timeout_s, job_id=job_id
            )
            return {"job_id": done, "duplicate": False}
        ours = new_job_id()
        chosen = {**dict(params), "job_id": job_id or ours}
        request = Request.of(queue, "enqueue", chosen, payload=body, attachment=attachment)
        reply = await caller.call(request, timeout_s)
        there = str(reply["job_id"])
        return {"job_id": there, "duplicate": bool(reply.get("duplicate")) and there != ours}

    # --- results and dead letters ------------------------------------------------------------------

    async def result(
        self,
        prefix: str,
        job_id: str | HasJobId,
        *,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        wait_s: float = 0.0,
    ) -> Outcome:
        """What became of the job: `{"state", "result"}`. With `wait_s`, waits that long for it to be finished
        (an unknown id is told at once). The result itself is there only where the queue keeps results.

        Raises TypeError for what is no id and has none."""
        wanted = _id_of(job_id)
        queue = queue_prefix(prefix)
        attachment = self._attachment(token)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            left_s = max(until - loop.time(), 0.0)
            reply = await self._result_once(queue, wanted, attachment, timeout_s, left_s)
            state = str(reply.get("state", "unknown"))
            if state in _FINISHED or loop.time() >= until:
                return {"state": state, "result": self._decoded(reply.get("result"), serializer)}

    async def _result_once(
        self, queue: str, job_id: str, attachment: bytes | None, timeout_s: float, left_s: float
    ) -> dict[str, Any]:
        caller = self._opened()[0]
        hold_s = min(left_s, _LONGEST_HOLD_S)
        params: dict[str, object] = {"job_id": job_id}
        if hold_s <= 0:
            request = Request.of(queue, "result", params, attachment=attachment)
            return await caller.call(request, timeout_s)
        if await caller.settled_dialect(queue, Patience(timeout_s), attachment) == "base":
            # A peer 0.3 owner answers at once, finished or not: look again a little later.
            request = Request.of(queue, "result", params, attachment=attachment)
            reply = await caller.call(request, timeout_s)
            if reply.get("state") not in _FINISHED:
                await asyncio.sleep(min(_POLL_S, left_s))
            return reply
        request = Request.of(queue, "result", {**params, "wait": round(hold_s, 3)}, attachment=attachment)
        return await caller.call(request, timeout_s, hold_s=hold_s + min(_HOLD_RESERVE_S, timeout_s))

    async def dead_letters(
        self,
        prefix: str,
        *,
        serializer: Serializes | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        """The queue's dead letters, oldest first; at most `limit` of them."""
        letters: list[DeadLetter] = []
        after: str | None = None
        while limit is None or len(letters) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(letters))
            page = await self.dead_page(prefix, limit=size, after=after, token=token, timeout_s=timeout_s)
            letters.extend(
                {
                    "job_id": job["job_id"],
                    "attempts": job["attempts"],
                    "last_error": job["last_error"],
                    "data": self._decoded(job["data"], serializer),
                }
                for job in page["jobs"]
            )
            after = page.get("next")
            if after is None:
                break
        return letters[:limit]

    async def dead_page(
        self,
        prefix: str,
        *,
        limit: int = _PAGE,
        after: str | None = None,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> dict[str, Any]:
        """One page as the owner sends it: `{"jobs": [...], "next": cursor or None}`, data still in base64."""
        params: dict[str, object] = {"limit": limit}
        if after is not None:
            params["after"] = after
        return await self.call(prefix, "dead", params, token=token, timeout_s=timeout_s)

    async def dead_requeue(
        self,
        prefix: str,
        job_id: str | HasJobId | None = None,
        *,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> int:
        """Makes a dead letter, or with no `job_id` all of them, ready again. Returns how many."""
        return await self._in_parts(prefix, "requeue", "requeued", job_id, token=token, timeout_s=timeout_s)

    async def dead_purge(
        self,
        prefix: str,
        job_id: str | HasJobId | None = None,
        *,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> int:
        """Forgets a dead letter, or with no `job_id` all of them. Returns how many."""
        return await self._in_parts(prefix, "purge", "purged", job_id, token=token, timeout_s=timeout_s)

    async def _in_parts(
        self,
        prefix: str,
        verb: str,
        counted: str,
        job_id: str | HasJobId | None,
        *,
        token: Token,
        timeout_s: float,
    ) -> int:
        """Until the owner has no more to do: of very many letters it does a part at a time."""
        count = 0
        while True:
            reply = await self.call(prefix, verb, _one_or_all(job_id), token=token, timeout_s=timeout_s)
            count += int(reply[counted])
            if not reply.get("more"):
                return count

    # --- managing ----------------------------------------------------------------------------------

    async def cancel(
        self, prefix: str, job_id: str | HasJobId, *, token: Token = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """`{"ok", "state"}`; state "leased" means that the worker running it has been asked to give it up."""
        return await self.call(prefix, "cancel", {"job_id": _id_of(job_id)}, token=token, timeout_s=timeout_s)

    async def pause(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> None:
        """The queue delivers nothing more until `resume`, also across restarts."""
        await self.call(prefix, "pause", token=token, timeout_s=timeout_s)

    async def resume(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> None:
        """The queue delivers again."""
        await self.call(prefix, "resume", token=token, timeout_s=timeout_s)

    async def stats(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> dict[str, Any]:
        """`{"counts": jobs by state, "paused", "workers", "oldest_ready_s", "totals": since the owner's start}`."""
        return await self.call(prefix, "stats", token=token, timeout_s=timeout_s)

    async def why(
        self, prefix: str, job_id: str | HasJobId, *, token: Token = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """`{"state", "why": one sentence on what the job waits for}`."""
        return await self.call(prefix, "why", {"job_id": _id_of(job_id)}, token=token, timeout_s=timeout_s)

    async def workers(
        self, prefix: str, *, token: Token = None, timeout_s: float = 5.0
    ) -> list[dict[str, Any]]:
        """`[{"worker": its id, "held": how many jobs, "up": whether it is there}, ...]`."""
        reply = await self.call(prefix, "workers", token=token, timeout_s=timeout_s)
        return list(reply["workers"])

    async def info(self, prefix: str, *, token: Token = None, timeout_s: float = 5.0) -> dict[str, Any]:
        """What the owner is and can do. NotFoundError where it is an istos 0.3 node."""
        return await self.call(prefix, "info", token=token, timeout_s=timeout_s)

    async def last_tick(
        self, prefix: str, schedule: str, *, token: Token = None, timeout_s: float = 5.0
    ) -> str | None:
        """The name of the schedule's last tick that was enqueued."""
        reply = await self.call(prefix, "tick", {"schedule": schedule}, token=token, timeout_s=timeout_s)
        last = reply.get("last")
        return None if last is None else str(last)

    async def call(
        self,
        prefix: str,
        verb: str,
        params: Mapping[str, object] | None = None,
        *,
        token: Token = None,
        timeout_s: float = 5.0,
    ) -> dict[str, Any]:
        """Any verb that may be repeated, and its reply. Raises OwnerUnreachable when no owner answers within
        `timeout_s`, NotFoundError for a verb that it does not have, and what else the owner answers with."""
        request = Request.of(queue_prefix(prefix), verb, params, attachment=self._attachment(token))
        return await self._opened()[0].call(request, timeout_s)


def _one_or_all(job_id: str | HasJobId | None) -> dict[str, object]:
    return {"all": 1} if job_id is None else {"job_id": _id_of(job_id)}


def _id_of(job: str | HasJobId) -> str:
    """Anything else would be sent as some text, and answered as a job that nobody knows."""
    told = job if isinstance(job, str) else getattr(job, "job_id", None)
    if not isinstance(told, str):
        raise TypeError(
            "job_id must be the id that enqueue() returned, or the handle that a task's enqueue() returned, got "
            f"{job if job is None else type(job).__name__}"
        )
    return told
