"""Runs one delivery: decode, dependencies, middleware, handler; whatever happens becomes an outcome. Knows no
slots, no owner."""

from __future__ import annotations

import binascii
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from istos_worker.serialization import Serializer
from istos_worker.worker.control import Cancelled, Discard, Retry, Snooze
from istos_worker.worker.delivery import Delivery, Stop
from istos_worker.worker.dependencies import CONTEXT, Plan, RunSync, resolve
from istos_worker.worker.forked import end_if_copy
from istos_worker.worker.handlers import Handler, Handlers
from istos_worker.worker.outcomes import NULL, Acked, Failed, Forgotten, GaveUp, Outcome, Released

log = logging.getLogger(__name__)
_OWN_FOLDER = str(Path(__file__).parent)
_UNKNOWN_TASK_PAUSE_S = 1.0
_LONGEST_ERROR = 16_000


class Call(NamedTuple):
    handler: Handler
    args: list[Any]
    kwargs: dict[str, Any]


class UnknownTask(Exception):  # noqa: N818 - a fact about this worker, not a failure of the job
    """The body is a call of a task that this worker does not have."""


class Runner:
    def __init__(
        self,
        handlers: Handlers,
        *,
        serializer: Serializer,
        run_sync: RunSync,
        job_timeout_s: float | None = None,
        can_release: bool = True,
    ) -> None:
        self._handlers = handlers
        self._tasks = handlers.tasks
        self._middleware = tuple(reversed(handlers.middleware))
        self._serializer = serializer
        self._run_sync = run_sync
        self._job_timeout_s = job_timeout_s
        self.can_release = can_release
        """False against a peer 0.3 owner."""

    def prepare(self, delivery: Delivery) -> Call | Outcome:
        """What to call; an outcome where the body cannot be read or nothing here runs it."""
        try:
            body = self._serializer.deserialize(binascii.a2b_base64(delivery.wire["data"]))
            call = self._call_of(body)
        except UnknownTask as unknown:
            if self.can_release:
                return Released(_UNKNOWN_TASK_PAUSE_S)
            return Failed(str(unknown))
        except Exception as broken:
            log.error("cannot read the body of job %s: %s", delivery.label, broken, extra=_extra(delivery))
            return Failed(f"the job's body cannot be read: {error_text(broken)}")
        delivery.handler = call.handler
        return call

    def _call_of(self, body: Any) -> Call:
        tasks = self._tasks
        if tasks and type(body) is dict and type(name := body.get("task")) is str and _is_call(body):
            handler = tasks.get(name)
            if handler is not None:
                return Call(handler, body["args"], body["kwargs"])
            raise UnknownTask(f"this worker has no task {name!r}")
        plain = self._handlers.plain
        if plain is None:
            raise UnknownTask("the body is no task call, and this worker has only tasks")
        return Call(plain, [body], {})

    def time_limit(self, handler: Handler) -> float | None:
        return handler.timeout_s if handler.timeout_s is not None else self._job_timeout_s

    async def run(self, delivery: Delivery, call: Call) -> Outcome:
        """Never raises: what the handler raises is its job's affair, SystemExit and CancelledError too."""
        try:
            result = await self._invoke(delivery, call)
        except BaseException as failure:  # user code: see the docstring
            end_if_copy(failure)
            return self._judged(delivery, call.handler, failure)
        end_if_copy()
        try:
            return Acked(NULL if result is None else _as_bytes(self._serializer.serialize(result)))
        except Exception as refused:
            reason = f"the result cannot be serialized: {error_text(refused)}"
            log.error("job %s ran, but %s", delivery.label, reason, extra=_extra(delivery))
            return Failed(reason, discard=True)

    def _invoke(self, delivery: Delivery, call: Call) -> Awaitable[Any]:
        plan = call.handler.plan.current()
        if not self._middleware and plan.simple and plan.is_async:
            if plan.wants_context:
                call.kwargs[CONTEXT] = delivery.context
            found: Awaitable[Any] = plan.function(*call.args, **call.kwargs)
            return found
        innermost: Callable[[], Awaitable[Any]] = functools.partial(self._inject, delivery, plan, call)
        for middleware in self._middleware:
            innermost = functools.partial(middleware, delivery.context, innermost)
        return innermost()

    async def _inject(self, delivery: Delivery, plan: Plan, call: Call) -> Any:
        kwargs = call.kwargs
        if plan.wants_context:
            kwargs = {**kwargs, CONTEXT: delivery.context}
        if plan.simple:
            return await self._run(plan, call.args, kwargs)
        async with AsyncExitStack() as stack:
            injected = await resolve(plan.needs, delivery.context, stack, self._run_sync)
            return await self._run(plan, call.args, {**kwargs, **injected})

    async def _run(self, plan: Plan, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if plan.is_async:
            return await plan.function(*args, **kwargs)
        result = await self._run_sync(functools.partial(plan.function, *args, **kwargs))
        # A plain function may still hand out a coroutine, a decorated one for instance.
        return await result if inspect.isawaitable(result) else result

    def _judged(self, delivery: Delivery, handler: Handler, failure: BaseException) -> Outcome:
        if delivery.stop is not None:
            return self.stopped(delivery, handler)
        policy = handler.retry
        match failure:
            case Snooze(after_s=after_s):
                return Released(after_s) if self.can_release else Failed(error_text(failure), after_s)
            case Discard(reason=reason):
                return Failed(_reason_text(reason), discard=True)
            case Cancelled():
                return GaveUp() if self.can_release else Failed(error_text(failure))
            case Retry():
                wait_s = failure.wait_s(delivery.attempt)
                if wait_s is None and policy is not None:
                    wait_s = policy.wait_s(delivery.attempt)
                final = failure.max_attempts or (policy.max_attempts if policy is not None else None)
                return Failed(
                    _cause_text(failure), wait_s, discard=final is not None and delivery.attempt >= final
                )
        _log_failure(delivery, failure)
        if policy is None:
            return Failed(error_text(failure))
        if policy.is_final(failure, delivery.attempt):
            return Failed(error_text(failure), discard=True)
        return Failed(error_text(failure), policy.wait_s(delivery.attempt))

    def stopped(self, delivery: Delivery, handler: Handler | None) -> Outcome:
        """The outcome of a delivery that the worker ended."""
        match delivery.stop:
            case Stop.TIME_LIMIT:
                limit_s = None if handler is None else self.time_limit(handler)
                error = f"TimeoutError: time limit of {limit_s or 0:g} s exceeded"
                log.error("job %s: %s", delivery.label, error, extra=_extra(delivery))
                return self._timed_out(delivery, handler, error)
            case Stop.CANCEL:
                return GaveUp()
            case Stop.LOST:
                return Forgotten()
            case _:
                return (
                    Released() if self.can_release else Failed("the worker stopped before the job was done")
                )

    def _timed_out(self, delivery: Delivery, handler: Handler | None, error: str) -> Outcome:
        policy = None if handler is None else handler.retry
        if policy is None:
            return Failed(error)
        if policy.is_final(TimeoutError(), delivery.attempt):
            return Failed(error, discard=True)
        return Failed(error, policy.wait_s(delivery.attempt))


def _as_bytes(raw: object) -> bytes:
    """A serializer may be the user's, and unchecked."""
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, (bytearray, memoryview)):
        return bytes(raw)
    raise TypeError(f"its serializer gives {type(raw).__name__}, not bytes")


def _is_call(body: dict[str, Any]) -> bool:
    return type(body.get("args")) is list and type(body.get("kwargs")) is dict


def error_text(failure: BaseException) -> str:
    """One line: "ValueError: boom"."""
    try:
        text = str(failure)
    except Exception:  # an exception class of the user's whose __str__ fails
        text = "(no message: its __str__ raises)"
    return f"{type(failure).__name__}: {_presentable(text)}" if text else type(failure).__name__


def _presentable(text: str) -> str:
    """Of bounded length, and without the lone surrogates that JSON cannot carry."""
    if len(text) > _LONGEST_ERROR:
        text = f"{text[:_LONGEST_ERROR]}... ({len(text)} characters)"
    return text.encode(errors="backslashreplace").decode()


def _reason_text(reason: object) -> str:
    """What a handler gave as its reason: text as a rule, but it may be the exception it caught, or anything."""
    if isinstance(reason, BaseException):
        return error_text(reason)
    try:
        return _presentable(str(reason))
    except Exception:  # a __str__ of the user's
        return f"(a {type(reason).__name__} whose __str__ raises)"


def _cause_text(failure: Retry) -> str:
    cause = failure.__cause__ or failure.__context__
    said = _reason_text(failure.args[0] if failure.args else failure)
    return f"{said} ({error_text(cause)})" if cause is not None else said


def _log_failure(delivery: Delivery, failure: BaseException) -> None:
    context = delivery.context
    log.error(
        "job %s failed, attempt %d of %d: %s",
        delivery.label,
        context.attempt,
        context.max_attempts,
        error_text(failure),
        exc_info=(type(failure), failure, _users_part(failure.__traceback__)),
        extra=_extra(delivery),
    )


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours."""
    left = trace
    while left is not None and left.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        left = left.tb_next
    return left if left is not None else trace


def _extra(delivery: Delivery) -> dict[str, Any]:
    return {
        "job_id": delivery.job_id,
        "queue": delivery.queue,
        "attempt": delivery.attempt,
        "correlation_id": delivery.wire.get("correlation_id"),
        "traceparent": delivery.wire.get("traceparent"),
    }


__all__ = ["Call", "Runner", "error_text"]
