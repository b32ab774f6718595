"""What a worker of one queue can run: a plain handler, tasks by name, or both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from istos_worker.worker.control import Retry
from istos_worker.worker.dependencies import Overrides, Plan, compile_plan

if TYPE_CHECKING:
    from istos_worker.context import JobContext

Middleware = Callable[["JobContext", Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""`async def middleware(ctx, call_next)`: returns what `await call_next()` returns, or anything else."""

ANY_BODY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function that runs jobs, with everything known about it beforehand."""

    plan: Plan
    task: str | None = None
    """The task's name; None for a plain handler, which takes the decoded body as its one argument."""
    timeout_s: float | None = None
    retry: Retry | None = None

    @classmethod
    def plain(cls, function: Callable[..., Any], *, overrides: Overrides | None = None) -> Handler:
        return cls(plan=compile_plan(function, supplied=1, overrides=overrides))

    @classmethod
    def of_task(
        cls,
        function: Callable[..., Any],
        name: str,
        *,
        timeout_s: float | None = None,
        retry: Retry | None = None,
        overrides: Overrides | None = None,
    ) -> Handler:
        plan = compile_plan(function, supplied=None, overrides=overrides)
        return cls(plan=plan, task=name, timeout_s=timeout_s, retry=retry)

    @property
    def label(self) -> str:
        return self.task or self.plan.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    plain: Handler | None = None
    tasks: Mapping[str, Handler] = field(default_factory=dict)
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        if self.plain is None and not self.tasks:
            raise ValueError("a worker needs a handler or a task")

    def announced(self) -> tuple[str, ...] | None:
        """The names for a claim's `tasks`; None when anything will do."""
        if not self.tasks:
            return None
        return (*self.tasks, ANY_BODY) if self.plain is not None else tuple(self.tasks)
