"""`App.serving()`: a program of the peer's queue surface runs after changing its import."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from istos_worker import App, Depends, JobContext, TokenAuthorizer, ZenohSettings
from istos_worker.errors import IstosError
from istos_worker.serialization import RawSerializer
from tests.fixtures.live import free_endpoint, until


def new_app(**options: Any) -> App:
    config = ZenohSettings(listen=(free_endpoint(),), scouting="off")
    return App("shop", config=config, **options)


async def test_declared_enqueued_run_and_told() -> None:
    app = new_app()
    app.queue("jobs/email", keep_results=True)

    @app.worker("jobs/email", concurrency=2)
    async def send(job: dict[str, Any], ctx: JobContext) -> str:
        return f"{job['to']} {ctx.attempt}/{ctx.max_attempts} {ctx.queue}"

    async with app.serving(), asyncio.timeout(20):
        job_id = await app.enqueue("jobs/email", {"to": "a@b.c"})
        found = await app.result("jobs/email", job_id, wait_s=10)

    assert found == {"state": "done", "result": "a@b.c 1/5 jobs/email"}


async def test_declaring_opens_nothing_and_calls_need_a_connection() -> None:
    app = new_app(storage="sqlite:////nonexistent/folder/q.db")
    app.queue("jobs/a")

    assert app.session is None
    with pytest.raises(RuntimeError, match="serving"):
        await app.enqueue("jobs/a", 1)


async def test_a_failing_handler_ends_in_the_dead_letters() -> None:
    app = new_app()
    app.queue("jobs/a", max_attempts=2, retry_backoff_s=0.0)

    @app.worker("jobs/a")
    async def fail(job: int) -> None:
        raise ValueError("no luck")

    async with app.serving(), asyncio.timeout(20):
        job_id = await app.enqueue("jobs/a", 1)
        await app.result("jobs/a", job_id, wait_s=10)
        letters = await app.dead_letters("jobs/a")

    (letter,) = letters
    assert (letter["job_id"], letter["attempts"], letter["data"]) == (job_id, 2, 1)
    assert "no luck" in str(letter["last_error"])


async def test_dependencies_are_injected_and_overridden() -> None:
    app = new_app()
    app.queue("jobs/a", keep_results=True)

    def database() -> str:
        return "real"

    @app.worker("jobs/a")
    async def work(job: int, db: str = Depends(database)) -> str:
        return db

    app.dependency_overrides[database] = lambda: "fake"
    async with app.serving(), asyncio.timeout(20):
        job_id = await app.enqueue("jobs/a", 1)
        found = await app.result("jobs/a", job_id, wait_s=10)

    assert found["result"] == "fake"


async def test_chain_group_and_chord_run() -> None:
    app = new_app()
    app.queue("jobs/a", keep_results=True)
    app.queue("jobs/b", keep_results=True)
    collected: asyncio.Queue[Any] = asyncio.Queue()

    @app.worker("jobs/a", concurrency=4)
    async def double(job: int) -> int:
        return job * 2

    @app.worker("jobs/b")
    async def collect(job: Any) -> None:
        await collected.put(job)

    async with app.serving(), asyncio.timeout(20):
        await app.chain(["jobs/a", "jobs/b"], 21)
        chained = await collected.get()
        ids = await app.group("jobs/a", [1, 2])
        grouped = [await app.result("jobs/a", job_id, wait_s=10) for job_id in ids]
        await app.chord("jobs/a", [1, 2, 3], callback=("jobs/b", "meta"))
        chorded = await collected.get()

    assert chained == 42
    assert [one["result"] for one in grouped] == [2, 4]
    assert chorded == {"results": [2, 4, 6], "input": "meta"}


async def test_a_task_is_called_enqueued_and_awaited() -> None:
    app = new_app()
    app.queue("jobs/a", keep_results=True)

    @app.task("jobs/a")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task("jobs/a", name="upper")
    def shout(text: str) -> str:
        return text.upper()

    async with app.serving(), asyncio.timeout(20):
        plain = await add(1, 2)
        handle = await add.enqueue(3, b=4)
        other = await shout.options(priority=5).enqueue("hi")
        with pytest.raises(TypeError):
            await add.enqueue("x", nonsense=1)  # type: ignore[call-arg, arg-type]
        results = (await handle.result(timeout_s=10), await other.result(timeout_s=10))

    assert plain == 3
    assert results == (7, "HI")
    assert set(app.tasks["jobs/a"]) == {add.name, "upper"}


async def test_a_job_enqueued_by_a_job_belongs_to_the_same_trace() -> None:
    app = new_app()
    app.queue("jobs/a")
    app.queue("jobs/b")
    seen: asyncio.Queue[str | None] = asyncio.Queue()

    @app.worker("jobs/a")
    async def first(job: int) -> None:
        await app.enqueue("jobs/b", job)

    @app.worker("jobs/b")
    async def second(job: int, ctx: JobContext) -> None:
        await seen.put(ctx.correlation_id)

    async with app.serving(), asyncio.timeout(20):
        role = app.queues["jobs/a"]
        await role.store.add(b"1", correlation_id="order-7")
        assert await seen.get() == "order-7"


async def test_a_schedule_fires() -> None:
    app = new_app()
    app.queue("jobs/a")
    ticks: asyncio.Queue[Any] = asyncio.Queue()

    @app.worker("jobs/a")
    async def tick(job: Any) -> None:
        await ticks.put(job)

    app.schedule("jobs/a", {"kind": "fast"}, every_s=0.05, initial_delay_s=0)
    async with app.serving(), asyncio.timeout(20):
        assert [await ticks.get() for _ in range(3)] == [{"kind": "fast"}] * 3


async def test_hooks_and_lifespan_surround_the_work() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        order.append("lifespan")
        yield
        order.append("lifespan ends")

    app = new_app(lifespan=lifespan)

    @app.on_startup
    async def start() -> None:
        order.append("start")

    @app.on_shutdown
    def stop() -> None:
        order.append("stop")

    async with app.serving():
        order.append("serving")

    assert order == ["lifespan", "start", "serving", "stop", "lifespan ends"]


async def test_the_apps_own_calls_carry_its_token() -> None:
    app = new_app(authorizer=TokenAuthorizer("s3cr3t"), token="s3cr3t")
    app.queue("jobs/a", keep_results=True)

    @app.worker("jobs/a")
    async def work(job: int) -> int:
        return job

    async with app.serving(), asyncio.timeout(20):
        job_id = await app.enqueue("jobs/a", 7)
        found = await app.result("jobs/a", job_id, wait_s=10)

    assert found["result"] == 7


async def test_a_producer_only_connects() -> None:
    endpoint = free_endpoint()
    owner = App(config=ZenohSettings(listen=(endpoint,), scouting="off"))
    owner.queue("jobs/a")
    producer = App(config=ZenohSettings(connect=(endpoint,)))
    producer.queue("jobs/a")

    async with owner.serving(), producer.connected():
        await producer.enqueue("jobs/a", 1, serializer=RawText())

        async def is_there() -> bool:
            return bool((await producer.stats("jobs/a"))["counts"]["ready"])

        await until(is_there)
    assert producer.session is None


class RawText:
    """A serializer that gives text, as some of the peer's do."""

    def serialize(self, message: object, /) -> str:
        return f"<{message}>"

    def deserialize(self, data: bytes, /) -> str:
        return data.decode()[1:-1]


async def test_serializers_of_a_queue_are_used_on_both_sides() -> None:
    app = new_app()
    app.queue("jobs/a", keep_results=True)

    @app.worker("jobs/a", serializer=RawText())
    async def work(job: str) -> str:
        return job.upper()

    async with app.serving(), asyncio.timeout(20):
        job_id = await app.enqueue("jobs/a", "hi", serializer=RawText())
        found = await app.result("jobs/a", job_id, wait_s=10, serializer=RawText())

    assert found["result"] == "HI"


async def test_a_durable_queue_is_there_after_a_restart(tmp_path: Any) -> None:
    for expected in (1, 2):
        app = new_app(storage=f"sqlite:///{tmp_path}/q.db")
        app.queue("jobs/a")
        async with app.serving():
            await app.enqueue("jobs/a", 1)
            assert (await app.stats("jobs/a"))["counts"]["ready"] == expected


async def test_an_app_is_tested_without_a_network() -> None:
    app = new_app()
    app.queue("jobs/a", keep_results=True)

    @app.worker("jobs/a")
    async def double(job: int) -> int:
        return job * 2

    async with app.testing() as t:
        job_id = await app.enqueue("jobs/a", 21)
        await t.run_until_idle()
        assert await app.result("jobs/a", job_id) == {"state": "done", "result": 42}


def declarations() -> Iterator[Any]:
    yield lambda app: app.queue("jobs/a") and app.queue("jobs/a/")
    yield lambda app: app.queue("jobs/*")
    yield lambda app: app.queue("jobs/a", max_attempts=0)
    yield lambda app: app.worker("jobs/a", concurrency=0)
    yield lambda app: app.worker("jobs/a", poll_interval_s=0)
    yield lambda app: [app.worker("jobs/a")(print), app.worker("jobs/a")(repr)]
    yield lambda app: app.schedule("jobs/a", 1)
    yield lambda app: app.schedule("jobs/a", 1, every_s=1, cron="* * * * *")
    yield lambda app: app.schedule("jobs/a", 1, every_s=0)
    yield lambda app: app.schedule("jobs/a", 1, cron="61 * * * *")
    yield lambda app: app.schedule("jobs/a", 1, cron="* * * * *", tz="Mars/Olympus")
    yield lambda app: app.schedule("jobs/a", 1, every_s=1, catch_up="never")
    yield lambda app: [app.schedule("jobs/a", 1, every_s=1), app.schedule("jobs/a", 1, every_s=1)]


@pytest.mark.parametrize("declare", list(declarations()))
def test_a_wrong_declaration_fails_where_it_is_made(declare: Any) -> None:
    with pytest.raises((ValueError, IstosError)):
        declare(new_app())


def test_raw_bytes_have_a_serializer() -> None:
    assert RawSerializer().serialize(b"x") == b"x"
