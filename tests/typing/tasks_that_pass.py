"""Checked by mypy in test_typing_of_tasks.py: nothing here may be an error, and the revealed types must hold."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from istos_worker.task import AsyncTask, JobHandle, SyncTask, TaskApp, task_decorator


def tasks(app: TaskApp) -> None:
    @task_decorator(app, "jobs/math")
    async def add(a: int, b: int = 0) -> int:
        return a + b

    @task_decorator(app, "jobs/math", name="shout", timeout_s=5)
    def shout(text: str, *, times: int = 1) -> str:
        return text.upper() * times

    async def use() -> None:
        assert_type(await add(1), int)
        await assert_type(add(1), Coroutine[Any, Any, int])
        assert_type(shout("a", times=2), str)
        handle = await add.enqueue(1, b=2)
        assert_type(handle, JobHandle[int])
        assert_type(await handle.result(timeout_s=1), int)
        assert_type(await handle.status(), str)
        later = await shout.options(delay_s=5, priority=1).enqueue("a", times=3)
        assert_type(await later.result(), str)

    _: AsyncTask[[int, int], int] | None = None
    __: SyncTask[[str], str] | None = None
    print(use)
