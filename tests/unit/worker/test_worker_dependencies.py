# ruff: noqa: B008 - a call in a default value is how a dependency is declared
from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

import pytest

from istos_worker.worker.dependencies import (
    DependencyCycleError,
    Depends,
    compile_plan,
    injected_names,
    resolve,
)

steps: list[str] = []


@pytest.fixture(autouse=True)
def _no_steps() -> None:
    steps.clear()


async def call(function: Callable[..., Any], overrides: Any = None, context: Any = "ctx") -> Any:
    plan = compile_plan(function, overrides=overrides).current()
    async with AsyncExitStack() as stack:
        injected = await resolve(plan.needs, context, stack, asyncio.to_thread)
        if plan.wants_context:
            injected["ctx"] = context
        result = plan.function("job", **injected)
        return await result if asyncio.iscoroutine(result) else result


def settings() -> dict[str, str]:
    steps.append("settings")
    return {"dsn": "db"}


async def connection(found: dict[str, str] = Depends(settings)) -> str:
    return f"connection to {found['dsn']}"


async def session(conn: str = Depends(connection), found: Any = Depends(settings)) -> AsyncIterator[str]:
    steps.append("session opens")
    yield f"session on {conn}"
    steps.append("session closes")


def cursor(opened: Annotated[str, Depends(session)]) -> Iterator[str]:
    steps.append(f"cursor opens off the loop: {threading.current_thread() is not threading.main_thread()}")
    try:
        yield f"cursor of {opened}"
    finally:
        steps.append("cursor closes")


async def test_dependencies_come_before_the_handler_and_clean_up_in_reverse() -> None:
    async def handler(job: str, found: str = Depends(cursor)) -> str:
        steps.append("handler")
        return found

    assert await call(handler) == "cursor of session on connection to db"
    assert steps == [
        "settings",
        "session opens",
        "cursor opens off the loop: True",
        "handler",
        "cursor closes",
        "session closes",
    ]


async def test_a_dependency_is_called_once_a_job_unless_told_otherwise() -> None:
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    async def handler(
        job: str,
        a: int = Depends(count),
        b: int = Depends(count),
        c: int = Depends(count, use_cache=False),
        d: int = Depends(count, False),
    ) -> tuple[int, ...]:
        return a, b, c, d

    assert await call(handler) == (1, 1, 2, 3)
    assert await call(handler) == (4, 4, 5, 6)


async def test_generators_see_the_handlers_failure_and_clean_up() -> None:
    async def managed() -> AsyncIterator[int]:
        try:
            yield 1
        except ValueError as failure:
            steps.append(f"saw {failure}")
            raise

    async def handler(job: str, found: int = Depends(managed)) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await call(handler)
    assert steps == ["saw boom"]


async def test_overrides_are_looked_up_for_every_job() -> None:
    overrides: dict[Any, Any] = {}

    async def handler(job: str, conn: str = Depends(connection)) -> str:
        return conn

    plan = compile_plan(handler, overrides=overrides)
    assert plan.current() is plan
    overrides[settings] = lambda: {"dsn": "test"}

    assert await call(handler, overrides) == "connection to test"
    overrides.clear()
    assert await call(handler, overrides) == "connection to db"


async def test_a_dependency_may_ask_for_the_context() -> None:
    def tenant(ctx: Any) -> str:
        return f"tenant of {ctx}"

    async def handler(job: str, ctx: Any, found: str = Depends(tenant)) -> tuple[Any, str]:
        return ctx, found

    assert await call(handler) == ("ctx", "tenant of ctx")


async def test_a_depends_named_ctx_is_a_dependency() -> None:
    async def handler(job: str, ctx: Any = Depends(settings)) -> Any:
        return ctx

    assert not compile_plan(handler).wants_context
    assert await call(handler) == {"dsn": "db"}


def test_a_cycle_is_named_at_registration() -> None:
    def a(b: Any = None) -> None: ...

    def b(a: Any = Depends(a)) -> None: ...

    a.__defaults__ = (Depends(b),)

    async def handler(job: str, found: Any = Depends(a)) -> None: ...

    with pytest.raises(DependencyCycleError, match="a -> b -> a"):
        compile_plan(handler)


@pytest.mark.parametrize("keyword_only", [False, True])
def test_a_parameter_that_nothing_supplies_is_named_at_registration(keyword_only: bool) -> None:
    async def positional(job: str, other: int) -> None: ...

    async def keyword(job: str, *, other: int) -> None: ...

    with pytest.raises(TypeError, match="nothing supplies the parameter 'other'"):
        compile_plan(keyword if keyword_only else positional)


def test_a_handler_that_takes_no_job_is_named_at_registration() -> None:
    async def nothing(*, ctx: Any) -> None: ...

    async def anything(*jobs: Any) -> None: ...

    with pytest.raises(TypeError, match="nothing has no positional parameter for its job"):
        compile_plan(nothing)
    assert compile_plan(anything).is_async


def test_a_generator_is_no_handler() -> None:
    async def handler(job: str) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="handler is a generator"):
        compile_plan(handler)


def test_kinds_of_callables_are_told_apart() -> None:
    class Async:
        async def __call__(self, job: str) -> None: ...

    class Sync:
        def __call__(self, job: str) -> None: ...

        async def method(self, job: str) -> None: ...

    async def function(extra: int, job: str) -> None: ...

    assert compile_plan(Async()).is_async
    assert not compile_plan(Sync()).is_async
    assert compile_plan(Sync().method).is_async
    assert compile_plan(functools.partial(function, 1)).is_async
    assert not compile_plan(print).is_async


def test_injected_parameters_are_no_arguments_of_a_task() -> None:
    async def task(
        a: int, ctx: Any, db: Annotated[str, Depends(connection)], b: str = Depends(settings)
    ) -> None: ...

    assert injected_names(task) == {"ctx", "db", "b"}
