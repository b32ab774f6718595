from __future__ import annotations

import asyncio
from typing import Any

import pytest

from istos_worker.context import JobContext
from istos_worker.task import JobFailed, JobHandle, Task, TaskDecorator, task_decorator
from istos_worker.worker import Depends, Retry


class RecordingApp:
    """Takes what a task enqueues, and answers with what the test says."""

    def __init__(self, *states: Any) -> None:
        self.enqueued: list[tuple[str, Any, dict[str, Any]]] = []
        self.states = list(states)
        self.waits: list[float] = []

    async def enqueue(self, prefix: str, data: Any, **options: Any) -> str:
        self.enqueued.append(
            (prefix, data, {name: value for name, value in options.items() if value not in (None, 0)})
        )
        return options["job_id"] or "id-1"

    async def result(self, prefix: str, job_id: str, *, wait_s: float = 0.0) -> Any:
        self.waits.append(wait_s)
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def cancel(self, prefix: str, job_id: str) -> Any:
        return {"ok": True, "state": "cancelled"}

    def task(self, queue: str, **options: Any) -> TaskDecorator:
        return task_decorator(self, queue, **options)


def state(name: str, result: Any = None) -> dict[str, Any]:
    return {"state": name, "result": result}


async def test_calling_a_task_is_the_plain_call() -> None:
    app = RecordingApp()

    @app.task("jobs/math")
    async def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @app.task("jobs/math")
    def double(a: int) -> int:
        return a * 2

    assert await add(1, b=2) == 3
    assert double(4) == 8
    assert app.enqueued == []
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


async def test_enqueue_sends_the_call_by_name() -> None:
    app = RecordingApp()

    @app.task("jobs/math", name="add")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    handle = await add.enqueue(1, b=2)

    assert (handle.queue, handle.job_id) == ("jobs/math", "id-1")
    assert app.enqueued == [("jobs/math", {"task": "add", "args": [1], "kwargs": {"b": 2}}, {})]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"c": 3}), ((1,), {"a": 1})])
async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    app = RecordingApp()

    @app.task("jobs/math", name="add")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    with pytest.raises(TypeError, match="add: "):
        await add.enqueue(*args, **kwargs)
    assert app.enqueued == []


async def test_options_say_how_one_call_is_enqueued() -> None:
    app = RecordingApp()

    @app.task("jobs/math", name="add")
    async def add(a: int) -> int:
        return a

    handle = await add.options(delay_s=5, priority=3, job_id="x", queue="jobs/other").enqueue(1)
    await add.enqueue(2)

    assert (handle.queue, handle.job_id) == ("jobs/other", "x")
    (_, _, first), (queue, _, second) = app.enqueued
    assert first == {"delay_s": 5, "priority": 3, "job_id": "x"}
    assert (queue, second) == ("jobs/math", {})


async def test_what_a_worker_injects_is_no_argument() -> None:
    app = RecordingApp()

    def database() -> str:
        return "db"

    @app.task("jobs/math", name="save")
    async def save(a: int, ctx: JobContext | None = None, db: str = Depends(database)) -> str:
        return db

    await save.enqueue(1)
    with pytest.raises(TypeError, match="save: "):
        await save.enqueue(1, db="other")
    assert save.handler().plan.wants_context


def test_a_tasks_name_is_that_of_its_function() -> None:
    app = RecordingApp()

    @app.task("jobs/math")
    async def add(a: int) -> int:
        return a

    assert add.name.endswith("test_task.test_a_tasks_name_is_that_of_its_function.add")
    assert "<" not in add.name


@pytest.mark.parametrize("name", ["a,b", "*", "a b", "x" * 201, "a;b"])
def test_a_name_that_cannot_be_announced_is_refused(name: str) -> None:
    app = RecordingApp()

    async def work() -> None: ...

    with pytest.raises(ValueError, match="is not valid"):
        app.task("jobs/math", name=name)(work)


def test_a_generator_is_no_task() -> None:
    app = RecordingApp()

    def work() -> Any:
        yield 1

    with pytest.raises(TypeError, match="is a generator"):
        app.task("jobs/math")(work)


def test_a_task_brings_its_limit_and_policy_to_its_handler() -> None:
    made: list[Task[..., Any]] = []
    policy = Retry(max_attempts=3)

    async def work() -> None: ...

    task = task_decorator(RecordingApp(), "q", timeout_s=5, retry=policy, on_task=made.append)(work)

    assert made == [task]
    assert (task.handler().timeout_s, task.handler().retry) == (5, policy)


async def test_a_handle_waits_for_the_result() -> None:
    app = RecordingApp(state("ready"), state("leased"), state("done", {"a": 1}))
    handle: JobHandle[dict[str, int]] = JobHandle(app, "q", "id-1")

    assert await handle.result(timeout_s=60) == {"a": 1}
    assert len(app.waits) == 3
    assert all(0 < wait <= 20 for wait in app.waits)


async def test_a_handle_gives_up_after_its_timeout() -> None:
    app = RecordingApp(state("leased"))
    handle: JobHandle[None] = JobHandle(app, "q", "id-1")

    with pytest.raises(TimeoutError, match=r"job id-1 of q has not ended within 0\.01 s"):
        await handle.result(timeout_s=0.01)


@pytest.mark.parametrize("name", ["dead", "cancelled", "unknown"])
async def test_a_handle_tells_at_once_when_there_will_be_no_result(name: str) -> None:
    handle: JobHandle[None] = JobHandle(RecordingApp(state(name)), "q", "id-1")

    with pytest.raises(JobFailed, match=f"it is {name}"):
        await handle.result()


async def test_a_handle_knows_its_jobs_state_and_cancels_it() -> None:
    handle: JobHandle[None] = JobHandle(RecordingApp(state("leased")), "q", "id-1")

    assert await handle.status() == "leased"
    assert await handle.cancel() is True


async def test_tasks_are_made_of_plain_functions_too() -> None:
    app = RecordingApp()

    @app.task("jobs/math", name="double")
    def double(a: int) -> int:
        return a * 2

    await double.enqueue(2)
    assert not double.handler().plan.is_async
    assert await asyncio.to_thread(double, 2) == 4
