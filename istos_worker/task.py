"""`@app.task`: functions that are jobs, typed. Knows how a call becomes a body; not how it travels."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from istos_worker.errors import IstosError
from istos_worker.worker.control import Retry
from istos_worker.worker.dependencies import Overrides, injected_names
from istos_worker.worker.handlers import Handler

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")


class JobFailed(IstosError):  # noqa: N818 - what happened, not a defect of the caller
    """The awaited job ended without a result: dead, cancelled, or no longer known."""

    code = "job_failed"


class Outcome(TypedDict):
    """What `App.result` returns."""

    state: str
    result: Any


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

    async def result(self, prefix: str, job_id: str, *, wait_s: float = 0.0) -> Any: ...

    async def cancel(self, prefix: str, job_id: str) -> Any: ...


class EnqueueOptions(TypedDict, total=False):
    """The keywords of `Task.options`."""

    delay_s: float
    priority: int
    job_id: str
    unique_key: str
    max_attempts: int
    expires_s: float
    queue: str


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
