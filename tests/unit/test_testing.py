from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from istos_worker.app import App
from istos_worker.context import JobContext
from istos_worker.testing import Testing, VirtualClock
from istos_worker.worker import Depends, Retry, Snooze


def shop() -> App:
    app = App("shop")
    app.queue("jobs/mail", max_attempts=3, retry_backoff_s=10)
    app.queue("jobs/stats", keep_results=True)
    return app


async def test_a_task_runs_when_told_and_its_result_is_there() -> None:
    app = shop()

    @app.task("jobs/stats")
    async def add(a: int, b: int) -> int:
        return a + b

    async with app.testing() as t:
        job = await add.enqueue(1, b=2)
        assert await job.status() == "ready"
        (ran,) = await t.run_all()

        assert ran.result == 3
        assert t.result(job.job_id) == 3
        assert await job.result(timeout_s=1) == 3


async def test_retries_run_as_the_clock_moves() -> None:
    app = shop()
    attempts: list[int] = []

    @app.worker("jobs/mail")
    async def send(job: str, ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("mail server is down")
        return "sent"

    async with app.testing() as t:
        job_id = await t.enqueue("jobs/mail", "a@b.c")
        (first,) = await t.run_all()
        assert isinstance(first.exception, ValueError)
        assert await t.run_all() == []
        await t.advance(9)
        assert await t.run_all() == []
        await t.advance(2)
        (second,) = await t.run_all()
        assert second.attempt == 2
        await t.run_until_idle()

        assert attempts == [1, 2, 3]
        assert t.result(job_id) == "sent"
        assert t.dead("jobs/mail") == []


async def test_a_job_that_always_fails_ends_in_the_dead_letters() -> None:
    app = shop()

    @app.task("jobs/mail", retry=Retry(max_attempts=2, backoff_s=5))
    def send(to: str) -> None:
        raise ValueError(f"no such address: {to}")

    async with app.testing() as t:
        job = await send.enqueue("nobody")
        await t.run_until_idle()

        (dead,) = t.dead("jobs/mail")
        assert (dead.job_id, dead.attempts) == (job.job_id, 2)
        assert dead.last_error == "ValueError: no such address: nobody"
        with pytest.raises(LookupError, match="its last attempt ended with Failed"):
            t.result(job.job_id)


async def test_what_a_handler_enqueues_is_seen_and_carries_its_correlation_id() -> None:
    app = shop()
    seen: list[str | None] = []

    @app.worker("jobs/mail")
    async def send(job: Any, ctx: JobContext) -> None:
        await app.enqueue("jobs/stats", {"sent": job}, delay_s=60)

    @app.worker("jobs/stats")
    async def count(job: Any, ctx: JobContext) -> None:
        seen.append(ctx.correlation_id)

    async with app.testing() as t:
        await t.enqueue("jobs/mail", 1)
        await t.run_all()
        assert t.enqueued("jobs/stats") == [{"sent": 1}]
        assert t.counts("jobs/stats")["delayed"] == 1
        assert t.mesh.enqueued[-1].delay_s == 60
        await t.run_until_idle()

        assert len(seen) == 1
        assert t.enqueued() == [1, {"sent": 1}]


async def test_jobs_for_queues_of_others_are_taken_in_and_not_run() -> None:
    app = App("producer")
    app.queue("jobs/mail")

    @app.worker("jobs/mail")
    async def send(job: str) -> str:
        return job

    async with app.testing() as t:
        job_id = await app.enqueue("jobs/elsewhere", {"to": "a@b.c"})
        await app.chain(["jobs/mail", "jobs/elsewhere"], "x")
        await t.run_until_idle()

        assert t.enqueued("jobs/elsewhere") == [{"to": "a@b.c"}]
        assert t.state("jobs/elsewhere", job_id) == "ready"
        assert t.counts("jobs/elsewhere")["ready"] == 2


async def test_chains_and_chords_run_through() -> None:
    app = shop()
    ends: list[Any] = []

    @app.worker("jobs/stats")
    async def square(job: int) -> int:
        return job * job

    @app.worker("jobs/mail")
    async def report(job: Any) -> None:
        ends.append(job)

    async with app.testing() as t:
        await app.chain(["jobs/stats", "jobs/stats", "jobs/mail"], 3)
        await app.chord("jobs/stats", [1, 2, 3], callback=("jobs/mail", "sum"))
        await t.run_until_idle()

    assert ends == [81, {"results": [1, 4, 9], "input": "sum"}] or ends == [
        {"results": [1, 4, 9], "input": "sum"},
        81,
    ]


async def test_dependencies_are_overridden_and_hooks_run() -> None:
    app = shop()
    steps: list[str] = []
    app.on_startup(lambda: steps.append("up"))
    app.on_shutdown(lambda: steps.append("down"))

    def database() -> str:
        return "real"

    @app.worker("jobs/stats")
    async def work(job: Any, db: str = Depends(database)) -> None:
        steps.append(db)

    app.dependency_overrides[database] = lambda: "fake"
    async with app.testing() as t:
        await t.enqueue("jobs/stats", None)
        await t.run_all()

    assert steps == ["up", "fake", "down"]


async def test_snoozing_moves_the_virtual_clock_and_no_other() -> None:
    app = shop()

    @app.worker("jobs/stats")
    async def tomorrow(job: Any, ctx: JobContext) -> int:
        if t.clock().mono < began + 86_400:
            raise Snooze(3600)
        return ctx.attempt

    async with app.testing() as t:
        began = t.clock().mono
        job_id = await t.enqueue("jobs/stats", None)
        ran = await t.run_until_idle()

        assert len(ran) == 25
        assert t.result(job_id) == 1


async def test_a_job_that_enqueues_itself_for_ever_is_noticed() -> None:
    app = shop()

    @app.worker("jobs/stats")
    async def again(job: Any) -> None:
        await app.enqueue("jobs/stats", job)

    async with app.testing() as t:
        await t.enqueue("jobs/stats", None)
        with pytest.raises(RuntimeError, match="still not idle after 20 attempts"):
            await t.run_until_idle(limit=20)


async def test_the_plugin_gives_a_test_its_clock(
    istos_testing: Callable[[App], Any], istos_clock: VirtualClock
) -> None:
    app = shop()
    async with istos_testing(app) as t:
        assert isinstance(t, Testing)
        before = istos_clock().wall
        await t.advance(60)
        assert istos_clock().wall == before + 60
