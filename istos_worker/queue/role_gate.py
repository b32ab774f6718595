"""Lets a query pass to the store, or answers it with a refusal. Knows authorizers; not queues."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from istos_worker.errors import IstosError
from istos_worker.queue.verbs import Call
from istos_worker.wire.auth import AuthContext, Authorizer, judge

log = logging.getLogger(__name__)

PATIENCE_S = 30.0


class Gate:
    """Asks the authorizer about each call. A sync authorizer is asked at once; an async one in a task of the
    call's own, so that a slow one delays nobody else."""

    def __init__(self, prefix: str, authorizer: Authorizer, *, admit: Callable[[Call], None]) -> None:
        self._prefix = prefix
        self._authorizer = authorizer
        self._admit = admit
        self._asking: set[asyncio.Task[None]] = set()

    def check(self, call: Call, key: str) -> None:
        """Admits the call or answers it, now or later."""
        ctx = AuthContext(
            prefix=self._prefix,
            key_expr=key,
            params=dict(call.params),
            attachment=call.query.attachment,
            verb=call.verb,
        )
        try:
            verdict = self._authorizer(ctx)
            if inspect.isawaitable(verdict):
                self._later(call, ctx, verdict)
                return
            judge(verdict, ctx)
        except Exception as refused:
            call.failed(self._as_error(refused, call.verb))
        else:
            self._admit(call)

    def _later(self, call: Call, ctx: AuthContext, verdict: Awaitable[Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._judge(call, ctx, verdict))
        self._asking.add(task)
        task.add_done_callback(partial(self._judged, call, verdict))

    def _judged(self, call: Call, verdict: Awaitable[Any], task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if task.cancelled():  # we stop; the caller sees that nobody is here, and looks for the next owner
            if inspect.iscoroutine(verdict):
                verdict.close()  # the task may have ended before it awaited it
            call.query.drop()

    async def _judge(self, call: Call, ctx: AuthContext, verdict: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                judge(await verdict, ctx)
        except TimeoutError:
            call.failed(IstosError(f"the authorizer has not decided within {PATIENCE_S:g} s"))
        except Exception as refused:
            call.failed(self._as_error(refused, call.verb))
        else:
            self._admit(call)

    def _as_error(self, refused: Exception, verb: str) -> IstosError:
        if isinstance(refused, IstosError):
            return refused
        # The authorizer is user code: its failure is a refusal, and must not take the owner down.
        log.error("queue %s: the authorizer failed on %s", self._prefix, verb, exc_info=refused)
        return IstosError("the authorizer failed; see the owner's log")

    def close(self) -> None:
        for task in self._asking:
            task.cancel()
