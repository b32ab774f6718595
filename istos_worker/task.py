"""`@app.task`: functions that are jobs, typed. Knows how a call becomes a body; not how it travels."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, overload

from istos_worker.errors import IstosError
from istos_worker.worker.control import Retry
from istos_worker.worker.dependencies import Overrides, injected_names
from istos_worker.worker.handlers import Handler

if TYPE_CHECKING:
    from istos_worker.client.client import Outcome

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_LONGEST_WAIT_S = 20.0
_POLL_S = 0.05
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")


class JobFailed(IstosError):  # noqa: N818 - what happened, not a defect of the caller
    """The awaited job ended without a result: dead, cancelled, or no longer known."""

    code = "job_failed"


class TaskApp(Protocol):
    """What a task needs of the app."""

    async def enqueue(
        self,
        prefix: str,
        data: Any,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        job_id: str | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> str: ...

    async def result(self, prefix: str, job_id: str, *, wait_s: float = 0.0) -> Outcome: ...

    async def cancel(self, prefix: str, job_id: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOptions:
    """How one call is enqueued. The units and defaults are `App.enqueue`'s."""

    delay_s: float = 0.0
    priority: int = 0
    job_id: str | None = None
    unique_key: str | None = None
    max_attempts: int | None = None
    expires_s: float | None = None
    queue: str | None = None
    """Another queue than the task's own, one whose workers know the task too."""


class TaskCall(TypedDict):
    """The body on the wire."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    queue: str
    name: str
    timeout_s: float | None = None
    retry: Retry | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"task name {self.name!r} is not valid: use 1 to 200 letters, digits and _ . : / -"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s!r}")


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`, the same in every process: renaming or moving a function renames its task."""
    module = function.__module__
    if module == "__main__":  # a program run as a script is imported under its own name by its workers
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        path = getattr(sys.modules["__main__"], "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    return f"{module}.{function.__qualname__}".replace("<locals>.", "").replace("<lambda>", "lambda")


class JobHandle(Generic[R]):
    """A job that was enqueued, and the type of its result."""

    __slots__ = ("_app", "job_id", "queue")

    def __init__(self, app: TaskApp, queue: str, job_id: str) -> None:
        self._app = app
        self.queue = queue
        self.job_id = job_id

    async def result(self, *, timeout_s: float | None = None) -> R:
        """What the task returned, as JSON carries it. Needs `keep_results` on the queue.

        Raises JobFailed when the job ended without a result, or is not known (any more); TimeoutError when it
        has not ended within `timeout_s` (None: however long it takes).
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            asked_at = time.monotonic()
            left_s = max(until - asked_at, 0.0)
            found = await self._app.result(self.queue, self.job_id, wait_s=min(left_s, _LONGEST_WAIT_S))
            match found["state"]:
                case "done":
                    result: R = found["result"]
                    return result
                case "ready" | "leased" if left_s > 0:
                    # An owner that cannot wait (istos 0.3) is asked again, but not at once.
                    await asyncio.sleep(max(asked_at + _POLL_S - time.monotonic(), 0.0))
                case "ready" | "leased":
                    raise TimeoutError(
                        f"job {self.job_id} of {self.queue} has not ended within {timeout_s or 0:g} s"
                    )
                case state:
                    raise JobFailed(f"job {self.job_id} of {self.queue} has no result: it is {state}")

    async def status(self) -> str:
        """ready, leased, done, dead, cancelled or unknown."""
        found = await self._app.result(self.queue, self.job_id)
        return found["state"]

    async def cancel(self) -> bool:
        """True when the job is cancelled, or its worker has been asked to give it up."""
        answer = await self._app.cancel(self.queue, self.job_id)
        return bool(answer["ok"])

    def __repr__(self) -> str:
        return f"JobHandle({self.queue!r}, {self.job_id!r})"


class Task(Generic[P, R_co]):
    """A function that is also a kind of job. Calling it is the plain call."""

    __name__: str

    def __init__(
        self, function: Callable[P, Awaitable[R_co] | R_co], *, app: TaskApp, settings: TaskSettings
    ) -> None:
        """Raises TypeError for a function that cannot be called from a body, such as a generator."""
        self.function = function
        self.settings = settings
        self._app = app
        self._injected = injected_names(function)
        signature = inspect.signature(function)
        self._signature = signature.replace(
            parameters=[
                parameter for name, parameter in signature.parameters.items() if name not in self._injected
            ]
        )
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def queue(self) -> str:
        return self.settings.queue

    if TYPE_CHECKING:
        __call__: Callable[P, Awaitable[R_co] | R_co]
    else:

        def __call__(self, *args, **kwargs):
            return self.function(*args, **kwargs)

    def body(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """The call as it travels. Raises TypeError as the call would."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as wrong:
            raise TypeError(f"{self.name}: {wrong}") from None
        return {"task": self.name, "args": list(args), "kwargs": dict(kwargs)}

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        """Enqueues this call. Raises TypeError for arguments that do not fit, before anything is sent."""
        return await _enqueue(self, _NO_OPTIONS, self.body(*args, **kwargs))

    def options(
        self,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        job_id: str | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
        queue: str | None = None,
    ) -> TaskWithOptions[P, R_co]:
        """The same task, to be enqueued in another way: `await send.options(delay_s=5).enqueue("a@b.c")`."""
        return TaskWithOptions(
            self,
            EnqueueOptions(
                delay_s=delay_s,
                priority=priority,
                job_id=job_id,
                unique_key=unique_key,
                max_attempts=max_attempts,
                expires_s=expires_s,
                queue=queue,
            ),
        )

    def handler(self, *, overrides: Overrides | None = None) -> Handler:
        """What a worker runs for this task."""
        return Handler.of_task(
            self.function,
            self.name,
            timeout_s=self.settings.timeout_s,
            retry=self.settings.retry,
            overrides=overrides,
        )

    def __get__(self, instance: object, owner: type | None = None) -> Task[P, R_co]:
        return self

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"


class TaskWithOptions(Generic[P, R_co]):
    """A task and how to enqueue it."""

    def __init__(self, task: Task[P, R_co], options: EnqueueOptions) -> None:
        self._task = task
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        """As Task.enqueue."""
        return await _enqueue(self._task, self._options, self._task.body(*args, **kwargs))


async def _enqueue(task: Task[P, R_co], options: EnqueueOptions, body: TaskCall) -> JobHandle[R_co]:
    app = task._app
    queue = options.queue or task.queue
    policy = task.settings.retry
    job_id = await app.enqueue(
        queue,
        body,
        delay_s=options.delay_s,
        priority=options.priority,
        job_id=options.job_id,
        unique_key=options.unique_key,
        max_attempts=options.max_attempts or (None if policy is None else policy.max_attempts),
        expires_s=options.expires_s,
    )
    return JobHandle(app, queue, job_id)


_NO_OPTIONS = EnqueueOptions()


class TaskDecorator(Protocol):
    """What `App.task(...)` returns: coroutine functions and plain ones become tasks of their result's type."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine is a result too; the first match counts
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class AsyncTask(Task[P, R_co]):
    """A task whose function is a coroutine function."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class SyncTask(Task[P, R_co]):
    """A task whose function is a plain one."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def task_decorator(
    app: TaskApp,
    queue: str,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    retry: Retry | None = None,
    on_task: Callable[[Task[..., Any]], None] | None = None,
) -> TaskDecorator:
    """What `App.task` is made of. `on_task` is called with every task made, and may refuse it."""

    def decorate(function: Callable[..., Any], /) -> Task[..., Any]:
        settings = TaskSettings(
            queue=queue, name=name or default_name(function), timeout_s=timeout_s, retry=retry
        )
        kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        task: Task[..., Any] = kind(function, app=app, settings=settings)
        task.handler()  # what is wrong with its parameters shows now, not at the first job
        if on_task is not None:
            on_task(task)
        return task

    return decorate  # type: ignore[return-value]  # the overloads say more than one implementation can
