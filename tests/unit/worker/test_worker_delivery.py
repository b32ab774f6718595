from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest

from istos_worker.context import JobContext
from istos_worker.serialization import RawSerializer
from istos_worker.worker import Cancelled, Discard, Handler, Handlers, Retry, Snooze, WorkerHooks
from istos_worker.worker.running import JobLogFilter, current_job
from tests.unit.worker.house import QUEUE, House


async def test_what_a_handler_returns_is_the_result() -> None:
    house = House()

    async def double(job: int) -> int:
        return job * 2

    async with house.working(double):
        job_id = house.enqueue(21)
        await house.ended(job_id)

    assert house.result_of(job_id) == 42


async def test_what_a_handler_raises_fails_the_attempt_by_type_and_message() -> None:
    house = House(max_attempts=1)

    async def fail(job: Any) -> None:
        raise ValueError("boom")

    async with house.working(fail) as worker:
        job_id = house.enqueue()
        await house.ended(job_id)

    assert house.job(job_id).last_error == "ValueError: boom"
    assert worker.statistics.failed == 1


async def test_a_handler_that_names_ctx_is_told_about_its_delivery() -> None:
    house = House()
    seen: list[JobContext] = []

    async def once_more(job: Any, ctx: JobContext) -> None:
        seen.append(ctx)
        if ctx.attempt == 1:
            raise ValueError("boom")

    async with house.working(once_more):
        job_id = house.enqueue(correlation_id="c-1")
        await house.until(lambda: house.counts()["delayed"])
        house.advance(2)
        await house.ended(job_id)

    first, second = seen
    assert (first.job_id, first.queue, first.attempt, first.last_error) == (job_id, QUEUE, 1, None)
    assert (second.attempt, second.last_error, second.correlation_id) == (2, "ValueError: boom", "c-1")
    assert second.is_retry
    assert first.fence is not None
    assert second.fence is not None
    assert second.fence > first.fence


async def test_a_plain_function_runs_in_a_thread_and_sees_the_jobs_context() -> None:
    house = House()
    seen: list[Any] = []

    def work(job: Any) -> str:
        found = current_job()
        seen.append((threading.current_thread() is threading.main_thread(), found and found.job_id))
        return "done"

    async with house.working(work):
        job_id = house.enqueue()
        await house.ended(job_id)

    assert seen == [(False, job_id)]
    assert house.result_of(job_id) == "done"


async def test_plain_functions_run_in_as_many_threads_as_there_are_slots() -> None:
    house = House()
    together = threading.Barrier(3, timeout=5)

    def meet(job: Any) -> int:
        return together.wait()

    async with house.working(meet, concurrency=3):
        jobs = house.enqueue_many([1, 2, 3])
        await house.ended(*jobs)

    assert sorted(house.result_of(job) for job in jobs) == [0, 1, 2]


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), StopIteration()]
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_is_raised_fails_that_job_alone(raised: BaseException, is_async: bool) -> None:
    house = House(max_attempts=1)

    async def in_coroutine(job: str) -> str:
        if job == "bad":
            raise raised
        return job

    def in_thread(job: str) -> str:
        if job == "bad":
            raise raised
        return job

    async with house.working(in_coroutine if is_async else in_thread, concurrency=2):
        bad, good = house.enqueue_many(["bad", "good"])
        await house.ended(bad, good)
        after = house.enqueue("after")
        await house.ended(after)

    assert house.state_of(bad) == "dead"
    assert type(raised).__name__ in house.job(bad).last_error
    assert (house.result_of(good), house.result_of(after)) == ("good", "after")


async def test_retry_counts_an_attempt_and_waits_as_long_as_it_says() -> None:
    house = House()
    attempts: list[int] = []

    async def later(job: Any, ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry("busy", after_s=60)

    async with house.working(later):
        job_id = house.enqueue()
        await house.until(lambda: house.counts()["delayed"])
        house.advance(59)
        assert house.counts()["delayed"] == 1
        house.advance(1)
        await house.ended(job_id)

    assert attempts == [1, 2]
    assert house.job(job_id).last_error == "busy"


async def test_snooze_counts_no_attempt() -> None:
    house = House()
    attempts: list[int] = []

    async def later(job: Any, ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise Snooze(30)

    async with house.working(later) as worker:
        job_id = house.enqueue()
        await house.until(lambda: house.counts()["delayed"])
        house.advance(30)
        await house.ended(job_id)

    assert attempts == [1, 1]
    assert worker.statistics.released == 1


async def test_discard_sends_a_job_to_the_dead_letters_at_once() -> None:
    house = House()

    async def refuse(job: Any) -> None:
        raise Discard("no such customer")

    async with house.working(refuse):
        job_id = house.enqueue()
        await house.ended(job_id)

    assert house.state_of(job_id) == "dead"
    assert house.job(job_id).last_error == "no such customer"
    assert house.job(job_id).attempts == 1


async def test_a_cancelled_job_ends_its_coroutine_and_is_cancelled() -> None:
    house = House()
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang(job: Any, ctx: JobContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancelled
            ended.set()

    async with house.working(hang):
        job_id = house.enqueue()
        await started.wait()
        house.change(lambda state: state.cancel(job_id, house.clock()))
        await house.ended(job_id)

    assert ended.is_set()
    assert house.state_of(job_id) == "cancelled"


async def test_a_thread_may_give_up_when_it_sees_that_its_job_is_cancelled() -> None:
    house = House()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    go_on = threading.Event()

    def work(job: Any, ctx: JobContext) -> None:
        loop.call_soon_threadsafe(started.set)
        assert go_on.wait(5)
        if ctx.cancelled:
            raise Cancelled

    async with house.working(work):
        job_id = house.enqueue()
        await started.wait()
        house.change(lambda state: state.cancel(job_id, house.clock()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
        await house.ended(job_id)

    assert house.state_of(job_id) == "cancelled"


@pytest.mark.parametrize("result", [float("nan"), object(), b"raw", {"a": [1, {2: b"x"}]}])
async def test_a_result_that_cannot_be_carried_ends_the_job_without_repeating_it(result: Any) -> None:
    house = House()
    runs: list[int] = []

    async def work(job: Any) -> Any:
        runs.append(1)
        return result

    async with house.working(work):
        job_id = house.enqueue()
        await house.ended(job_id)

    assert house.state_of(job_id) == "dead"
    assert house.job(job_id).last_error.startswith("the result cannot be serialized: ")
    assert runs == [1]


async def test_a_body_that_cannot_be_read_fails_with_the_reason() -> None:
    house = House(max_attempts=1)

    async def work(job: Any) -> None:
        raise AssertionError("not to be called")

    async with house.working(work):
        job_id = house.enqueue(b"{not json")
        await house.ended(job_id)

    assert "the job's body cannot be read: ValueError: not JSON" in house.job(job_id).last_error


async def test_a_coroutine_over_its_time_limit_is_cancelled_and_fails() -> None:
    house = House(max_attempts=1)
    ended = asyncio.Event()

    async def hang(job: Any, ctx: JobContext) -> None:
        assert ctx.deadline is not None
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with house.working(hang, job_timeout_s=0.02):
        job_id = house.enqueue()
        await house.ended(job_id)

    assert ended.is_set()
    assert house.job(job_id).last_error == "TimeoutError: time limit of 0.02 s exceeded"
    assert house.retired == []


async def test_a_thread_over_its_time_limit_fails_costs_its_slot_and_asks_for_a_replacement() -> None:
    house = House(max_attempts=1)
    release = threading.Event()
    ran: list[str] = []

    def work(job: str) -> None:
        ran.append(job)
        if job == "stuck":
            release.wait(10)

    async with house.working(work, job_timeout_s=0.05) as worker:
        stuck = house.enqueue("stuck")
        await house.ended(stuck)
        assert house.job(stuck).last_error == "TimeoutError: time limit of 0.05 s exceeded"

        after = house.enqueue("after")
        await asyncio.sleep(0)
        assert ran == ["stuck"]  # the one slot is lost
        assert len(house.retired) == 1
        assert "stuck in job" in house.retired[0]

        release.set()  # the thread ends by itself: the slot is back
        await house.ended(after)
        assert worker.statistics.busy == 0

    assert ran == ["stuck", "after"]


async def test_contextvars_of_one_job_are_not_seen_by_the_next() -> None:
    house = House()
    leak: contextvars.ContextVar[str] = contextvars.ContextVar("leak", default="clean")

    async def work(job: Any) -> str:
        before = leak.get()
        leak.set("dirty")
        return before

    async with house.working(work):
        jobs = house.enqueue_many([1, 2, 3])
        await house.ended(*jobs)

    assert [house.result_of(job) for job in jobs] == ["clean"] * 3


async def test_a_cancellation_asked_for_inside_a_job_stays_in_that_job() -> None:
    house = House(max_attempts=1)

    async def work(job: str) -> str:
        if job == "bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return job

    async with house.working(work):
        bad, good = house.enqueue_many(["bad", "good"])
        await house.ended(bad, good)

    assert house.job(bad).last_error == "CancelledError"
    assert house.result_of(good) == "good"


async def test_the_current_job_is_known_to_the_code_it_calls_and_to_its_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    logger = logging.getLogger("shop")
    logger.addFilter(JobLogFilter())

    async def work(job: Any) -> str | None:
        logger.warning("charging")
        found = current_job()
        return None if found is None else found.correlation_id

    async with house.working(work):
        job_id = house.enqueue(correlation_id="c-7")
        await house.ended(job_id)

    assert current_job() is None
    assert house.result_of(job_id) == "c-7"
    (record,) = [record for record in caplog.records if record.name == "shop"]
    assert (record.job_id, record.correlation_id) == (job_id, "c-7")  # type: ignore[attr-defined]


async def test_a_job_says_how_far_it_is() -> None:
    house = House()
    said, finish = asyncio.Event(), asyncio.Event()

    async def work(job: Any, ctx: JobContext) -> None:
        ctx.progress(0.4, "parsing")
        said.set()
        await finish.wait()

    async with house.working(work) as worker:
        job_id = house.enqueue()
        await said.wait()
        assert worker.labels() == [f"{QUEUE} {job_id} (work, 40%, parsing)"]
        finish.set()
        await house.ended(job_id)


async def test_middleware_goes_around_the_handler_in_order() -> None:
    house = House()
    steps: list[str] = []

    def named(name: str) -> Any:
        async def middleware(ctx: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
            steps.append(f"{name} in")
            try:
                return [name, await call_next()]
            finally:
                steps.append(f"{name} out")

        return middleware

    def work(job: Any) -> str:
        steps.append("work")
        return "result"

    handlers = Handlers(plain=Handler.plain(work), middleware=[named("outer"), named("inner")])
    async with house.working(handlers):
        job_id = house.enqueue()
        await house.ended(job_id)

    assert steps == ["outer in", "inner in", "work", "inner out", "outer out"]
    assert house.result_of(job_id) == ["outer", ["inner", "result"]]


async def test_a_failure_is_logged_with_the_users_traceback_alone(caplog: pytest.LogCaptureFixture) -> None:
    house = House(max_attempts=1)

    async def fail(job: Any) -> None:
        raise ValueError("boom")

    async with house.working(fail):
        job_id = house.enqueue()
        await house.ended(job_id)

    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.job_id == job_id  # type: ignore[attr-defined]
    assert record.exc_info is not None
    trace = record.exc_info[2]
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "fail"


async def test_tasks_are_called_by_name_and_unknown_ones_are_left_alone() -> None:
    house = House()

    async def add(a: int, b: int = 0) -> int:
        return a + b

    handlers = Handlers(tasks={"add": Handler.of_task(add, "add")})
    async with house.working(handlers):
        known = house.enqueue({"task": "add", "args": [2], "kwargs": {"b": 3}})
        unknown = house.enqueue({"task": "subtract", "args": [], "kwargs": {}})
        await house.ended(known)

    assert house.result_of(known) == 5
    assert house.state_of(unknown) == "ready"
    assert house.job(unknown).attempts == 0


async def test_a_tasks_retry_policy_decides_how_failures_are_repeated() -> None:
    house = House()
    runs: list[str] = []

    async def work(kind: str) -> None:
        runs.append(kind)
        raise OSError("down") if kind == "repeated" else ValueError("wrong")

    policy = Retry(max_attempts=2, backoff_s=10, jitter=0, on=(OSError,))
    handlers = Handlers(tasks={"work": Handler.of_task(work, "work", retry=policy)})
    async with house.working(handlers):
        repeated = house.enqueue({"task": "work", "args": ["repeated"], "kwargs": {}})
        final = house.enqueue({"task": "work", "args": ["final"], "kwargs": {}})
        await house.ended(final)
        await house.until(lambda: house.counts()["delayed"])
        house.advance(10)
        await house.ended(repeated)

    assert sorted(runs) == ["final", "repeated", "repeated"]
    assert house.state_of(repeated) == "dead"


async def test_on_change_has_named_a_job_before_its_first_line_runs() -> None:
    from istos_worker.worker import Worker, WorkerHooks

    house = House()
    told: list[list[str]] = []
    workers: list[Worker] = []
    hooks = WorkerHooks(on_change=lambda: told.append(workers[0].running()))
    seen: list[bool] = []

    async def work(job: Any, ctx: JobContext) -> None:
        seen.append(ctx.job_id in told[-1])

    worker = house.worker(work, concurrency=2, hooks=hooks)
    workers.append(worker)
    async with worker:
        jobs = house.enqueue_many(list(range(20)))
        await house.ended(*jobs)
        await asyncio.sleep(0)

    assert seen == [True] * 20
    assert told[-1] == []


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (Discard("\ud800 lone"), "\\ud800 lone"),
        (Discard(ValueError("boom")), "ValueError: boom"),
        (Discard(MuteError()), "MuteError: (no message: its __str__ raises)"),
        (Retry("\ud800 lone", max_attempts=1), "\\ud800 lone"),
        (Retry(after_s=1e300, max_attempts=2), "the owner does not take what the handler asked for"),
    ],
    ids=["surrogate", "exception", "mute", "retry", "endless"],
)
async def test_a_reason_that_cannot_be_sent_as_it_is_holds_up_nothing(
    control: BaseException, reason: str
) -> None:
    house = House(max_attempts=1)

    async def work(job: str) -> None:
        if job == "control":
            raise control

    async with house.working(work, concurrency=2):
        strange, plain = house.enqueue_many(["control", "plain"])
        await house.ended(strange, plain)

    assert house.state_of(plain) == "done"
    assert house.job(strange).last_error.startswith(reason)


def test_waits_are_numbers_that_json_can_carry() -> None:
    assert type(Snooze(Decimal("1.5")).after_s) is float  # type: ignore[arg-type]
    for endless in (float("inf"), float("nan"), -1.0):
        with pytest.raises(ValueError, match="after_s must be 0 or more seconds"):
            Snooze(endless)
        with pytest.raises(ValueError, match="after_s must be 0 or more seconds"):
            Retry(after_s=endless)


async def test_a_serializer_that_gives_no_bytes_fails_its_job_and_no_other() -> None:
    house = House()

    class Texts(RawSerializer):
        def serialize(self, message: Any, /) -> bytes:
            return message  # type: ignore[no-any-return]

    async def work(job: bytes) -> Any:
        return "text" if job == b"text" else bytearray(job)

    async with house.working(work, serializer=Texts()):
        wrong, right = house.enqueue(b"text"), house.enqueue(b"7")
        await house.ended(wrong, right)

    assert "gives str, not bytes" in house.job(wrong).last_error
    assert house.result_of(right) == 7


async def test_a_job_stopped_before_its_first_line_gives_its_slot_back() -> None:
    house = House()
    begun: list[str] = []

    async def work(job: str) -> None:
        begun.append(job)

    def cancel_what_runs() -> None:  # on_change comes before the first line
        if worker.running() and not begun:
            begun.append("nothing")
            (job_id,) = worker.running()
            house.change(lambda state: state.cancel(job_id, house.clock()))
            assert worker._consumer is not None
            worker._consumer.slots.cancelled(job_id, None)

    worker = house.worker(work, concurrency=1, hooks=WorkerHooks(on_change=cancel_what_runs))
    async with worker:
        cancelled, later = house.enqueue_many(["cancelled", "later"])
        async with asyncio.timeout(5):
            await house.ended(cancelled, later)

    assert (house.state_of(cancelled), house.state_of(later)) == ("cancelled", "done")
    assert begun == ["nothing", "later"]


async def test_a_copy_of_the_worker_that_a_handler_forked_ends_with_its_handler() -> None:
    house = House()

    async def work(job: str) -> int:
        child = os.fork()
        if child == 0:
            raise SystemExit(7) if job == "exit" else ValueError("in the child")
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        return os.waitstatus_to_exitcode(status)

    async with house.working(work):
        leaves, fails = house.enqueue("exit"), house.enqueue("fail")
        await house.ended(leaves, fails)

    assert house.result_of(leaves) == 7
    assert house.result_of(fails) == 1
