"""Turns, group commit, recovery (ARCHITECTURE.md, decision 2). A medium that waits and fails when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from istos_worker.errors import IstosError, StorageUnavailableError
from istos_worker.queue.engine import Engine, system_clock
from istos_worker.queue.records import (
    ClaimRequest,
    Effects,
    Instant,
    JobRef,
    Lost,
    NewJob,
    Outgoing,
    Parked,
    QueueSettings,
)
from istos_worker.queue.state import QueueState
from istos_worker.storage.protocol import WriteBatch
from tests.unit.queue.fakes import FakeMedium, FakeStorage, FakeWaiter


class SlowMedium(FakeMedium):
    """Each commit waits until the test lets it through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Semaphore(0)
        self.begun: asyncio.Queue[WriteBatch] = asyncio.Queue()

    async def commit(self, batch: WriteBatch) -> None:
        self.begun.put_nowait(batch)
        await self.gate.acquire()
        await super().commit(batch)


class Request:
    """An Operation that remembers what became of it."""

    def __init__(self, apply: Callable[[QueueState, Instant], Any]) -> None:
        self._apply = apply
        self.value: Any = None
        self.error: IstosError | None = None
        self.ended = asyncio.Event()

    def apply(self, state: QueueState, now: Instant) -> None:
        self.value = self._apply(state, now)

    def done(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()

    def failed(self, error: IstosError) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()


class News(Request):
    outlives_failure = True


class Enqueue(Request):
    only_brings_jobs = True


class Settle(Request):
    """An outcome with a claim that waits: its worker is not answered before there are jobs."""

    @property
    def is_parked(self) -> bool:
        return isinstance(self.value, Parked)


def settle(job_id: str, waiter: FakeWaiter) -> Settle:
    def apply(state: QueueState, now: Instant) -> Any:
        state.ack(JobRef(job_id), now)
        return state.claim(ClaimRequest(waiter=waiter, wait_s=60), now)

    return Settle(apply)


def enqueue(job_id: str | None = None, **fields: Any) -> Enqueue:
    return Enqueue(lambda state, now: state.enqueue(NewJob(body=b"1", job_id=job_id, **fields), now))


def claim(waiter: FakeWaiter, *, wait_s: float, worker: str | None = None) -> Request:
    request = ClaimRequest(waiter=waiter, wait_s=wait_s, worker=worker)
    return Request(lambda state, now: state.claim(request, now))


@asynccontextmanager
async def running(medium: FakeMedium, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine("q", FakeStorage(medium), QueueSettings(prefix="q", **settings), system_clock)
    await engine.load()
    try:
        yield engine
    finally:
        if isinstance(medium, SlowMedium):
            medium.gate.release()
        await engine.aclose()


async def finished(*requests: Request) -> None:
    async with asyncio.timeout(5):
        for request in requests:
            await request.ended.wait()


async def test_requests_of_one_loop_turn_are_one_batch() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        requests = [enqueue() for _ in range(50)]
        for request in requests:
            engine.submit(request)
        await finished(*requests)

        assert [len(batch.rows) for batch in medium.commits] == [50]


async def test_nobody_is_answered_before_the_batch_is_durable_and_later_requests_gather() -> None:
    medium = SlowMedium()
    async with running(medium) as engine:
        first = enqueue("first")
        engine.submit(first)
        await medium.begun.get()
        later = [enqueue(f"later{index}") for index in range(5)]
        for request in later:
            engine.submit(request)
        await asyncio.sleep(0)
        assert not first.ended.is_set()
        assert engine.state.job("later0") is None

        medium.gate.release()
        await finished(first)
        batch = await medium.begun.get()
        assert len(batch.rows) == 5
        medium.gate.release()
        await finished(*later)


async def test_a_turn_without_writes_waits_for_no_commit() -> None:
    medium = SlowMedium()
    async with running(medium) as engine:
        look = Request(lambda state, now: state.stats(now))
        engine.submit(look)
        await finished(look)

        assert medium.begun.empty()


async def claimed(engine: Engine, job_id: str) -> None:
    """There is such a job, and somebody runs it; both are written."""
    enqueued, taken = enqueue(job_id), Request(lambda state, now: state.claim(ClaimRequest(), now))
    engine.submit(enqueued)
    engine.submit(taken)
    await finished(enqueued, taken)


async def test_an_outcome_that_nobody_is_told_of_yet_goes_with_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("istos_worker.queue.engine.HOLD_S", 60.0)
    medium = FakeMedium()
    async with running(medium) as engine:
        await claimed(engine, "first")
        medium.commits.clear()
        waiter = FakeWaiter()
        engine.submit(settled := settle("first", waiter))
        await asyncio.sleep(0)
        assert engine.state.job("first") is None
        assert not medium.commits

        engine.submit(enqueue("second"))
        await finished(settled)

        (batch,) = medium.commits
        assert batch.forgotten or len(batch.rows) == 2
        assert len(waiter.answers) == 1


async def test_an_outcome_that_nobody_is_told_of_is_written_soon_all_the_same() -> None:
    medium = SlowMedium()
    medium.gate.release()
    async with running(medium) as engine:
        await claimed(engine, "first")
        await medium.begun.get()
        engine.submit(settled := settle("first", FakeWaiter()))

        async with asyncio.timeout(5):
            await medium.begun.get()
        assert not settled.ended.is_set()
        medium.gate.release()
        await finished(settled)


async def test_who_waits_for_jobs_is_told_when_the_outcome_that_came_along_is_lost() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        await claimed(engine, "first")
        medium.failures = 1
        engine.submit(settled := settle("first", FakeWaiter()))
        await finished(settled)

        assert isinstance(settled.error, StorageUnavailableError)
        await until(lambda: engine.down_reason is None)
        assert engine.state.result("first", system_clock()).state == "leased"


async def test_closing_writes_an_outcome_that_nobody_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("istos_worker.queue.engine.HOLD_S", 60.0)
    medium = FakeMedium()
    async with running(medium) as engine:
        await claimed(engine, "first")
        medium.commits.clear()
        engine.submit(settle("first", FakeWaiter()))
        await asyncio.sleep(0)
        assert not medium.commits
    assert len(medium.commits) == 1


async def test_a_refused_request_harms_no_other_of_its_turn() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        good, bad = enqueue(), enqueue("not valid")

        def broken_call(state: QueueState, now: Instant) -> None:
            raise RuntimeError("a bug")

        broken = Request(broken_call)
        for request in (bad, broken, good):
            engine.submit(request)
        await finished(bad, broken, good)

        assert bad.error is not None
        assert bad.error.code == "bad_request"
        assert broken.error is not None
        assert broken.error.code == "internal_error"
        assert good.error is None


async def test_a_failed_batch_is_told_to_everyone_in_it_and_leaves_no_trace() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        kept = enqueue("kept")
        engine.submit(kept)
        await finished(kept)

        medium.failures = 1
        lost = [enqueue("lost"), Request(lambda state, now: state.claim(ClaimRequest(), now))]
        for request in lost:
            engine.submit(request)
        await finished(*lost)
        assert all(isinstance(request.error, StorageUnavailableError) for request in lost)
        assert "the disk is full" in str(lost[0].error)
        await until(lambda: engine.down_reason is None)

        assert engine.state.job("lost") is None
        job = engine.state.job("kept")
        assert job is not None
        assert job.public_state == "ready"
        again = enqueue("lost")
        engine.submit(again)
        await finished(again)
        assert again.value == ("lost", False)


@asynccontextmanager
async def with_a_waiting_claim(medium: SlowMedium) -> AsyncIterator[tuple[Engine, FakeWaiter]]:
    """An owner that has handed out jobs before, and a claim that waits for the next."""
    async with running(medium) as engine:
        medium.gate.release()
        await claimed(engine, "earlier")
        await medium.begun.get()
        waiter = FakeWaiter()
        engine.submit(waiting := claim(waiter, wait_s=60, worker="w"))
        await finished(waiting)
        yield engine, waiter


async def test_a_new_job_starts_before_it_is_durable_but_is_not_answered() -> None:
    medium = SlowMedium()
    async with with_a_waiting_claim(medium) as (engine, waiter):
        engine.submit(new := enqueue("new"))
        await medium.begun.get()

        assert [one.job_id for one in waiter.answers[0]] == ["new"]
        assert not new.ended.is_set()
        medium.gate.release()
        await finished(new)
        assert len(waiter.answers) == 1


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: Request(lambda state, now: state.nack(JobRef("earlier"), now)),
        lambda: enqueue(schedule="nightly", tick="2026-03-08T07:00:00.000Z"),
    ],
    ids=["another job's end", "a schedule"],
)
async def test_a_job_that_comes_of_something_starts_when_that_is_durable(
    request_of: Callable[[], Request],
) -> None:
    medium = SlowMedium()
    async with with_a_waiting_claim(medium) as (engine, waiter):
        engine.submit(asked := request_of())
        await medium.begun.get()

        assert not waiter.answers
        medium.gate.release()
        await finished(asked)
        assert len(waiter.answers) == 1


async def test_the_first_of_a_block_of_fences_waits_until_the_block_is_reserved() -> None:
    medium = SlowMedium()
    async with running(medium) as engine:
        waiter = FakeWaiter()
        engine.submit(waiting := claim(waiter, wait_s=60))
        await finished(waiting)
        engine.submit(new := enqueue("new"))
        batch = await medium.begun.get()

        assert "fence" in batch.notes
        assert not waiter.answers
        medium.gate.release()
        await finished(new)
        assert len(waiter.answers) == 1


async def test_a_job_that_started_and_could_not_be_written_is_no_job() -> None:
    medium = SlowMedium()
    async with with_a_waiting_claim(medium) as (engine, waiter):
        orders = []
        engine.on_effects = lambda effects: orders.extend(effects.orders)
        medium.failures = 1
        engine.submit(new := enqueue("new"))
        await medium.begun.get()
        ((early,),) = waiter.answers
        for _ in range(10):  # the probe and what follows
            medium.gate.release()
        await finished(new)
        assert isinstance(new.error, StorageUnavailableError)
        assert orders == [("w", Lost("new", early.fence))]
        await until(lambda: engine.down_reason is None)

        late = Request(lambda state, now: state.ack(JobRef("new", 1, early.fence), now))
        again = enqueue("new")
        taken = Request(lambda state, now: state.claim(ClaimRequest(), now))
        for request in (late, again, taken):
            engine.submit(request)
        await finished(late, again, taken)

        assert not late.value.ok
        assert not again.value.duplicate
        assert taken.value[0].fence > early.fence


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


async def test_while_the_medium_is_away_requests_fail_at_once_and_it_recovers_by_itself() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        reloads = []
        engine.on_reloaded = lambda: reloads.append(1)
        medium.failures = 3
        first = enqueue()
        engine.submit(first)
        await finished(first)

        meanwhile = enqueue()
        engine.submit(meanwhile)
        assert isinstance(meanwhile.error, StorageUnavailableError)

        await until(lambda: engine.down_reason is None)
        assert reloads == [1]


async def test_waiting_callers_are_told_of_a_failure_too() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        waiter = FakeWaiter()
        request = ClaimRequest(waiter=waiter, wait_s=60, tasks=frozenset({"none"}))
        parked = Request(lambda state, now: state.claim(request, now))
        engine.submit(parked)
        await finished(parked)
        assert isinstance(parked.value, Parked)

        medium.failures = 1
        failing = enqueue()
        engine.submit(failing)
        await finished(failing)

        assert len(waiter.errors) == 1
        await until(lambda: engine.down_reason is None)


def _up(worker: str, state: QueueState, now: Instant) -> None:
    state.worker_up(worker, now)


async def test_tokens_survive_a_failure_and_so_does_news_that_came_meanwhile() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        for worker in ("stays", "leaves"):
            up = News(partial(_up, worker))
            engine.submit(up)
            await finished(up)
        medium.failures = 2
        failing = enqueue()
        engine.submit(failing)
        await finished(failing)

        engine.submit(News(lambda state, now: state.worker_down("leaves", now)))
        engine.submit(News(lambda state, now: state.worker_up("comes", now)))
        await until(
            lambda: engine.down_reason is None and set(engine.state.alive_workers()) == {"stays", "comes"}
        )


async def test_a_delayed_job_reaches_a_waiting_claim_when_its_time_comes() -> None:
    async with running(FakeMedium()) as engine:
        waiter = FakeWaiter()
        claim = Request(lambda state, now: state.claim(ClaimRequest(waiter=waiter, wait_s=60), now))
        job = enqueue("late", delay_s=0.05)
        engine.submit(claim)
        engine.submit(job)
        loop = asyncio.get_running_loop()
        began = loop.time()

        await until(lambda: bool(waiter.answers))

        assert [one.job_id for one in waiter.answers[0]] == ["late"]
        assert loop.time() - began >= 0.049


async def test_a_lease_ends_by_itself() -> None:
    async with running(FakeMedium(), lease_s=0.03) as engine:
        job = enqueue("j")
        claim = Request(lambda state, now: state.claim(ClaimRequest(), now))
        engine.submit(job)
        engine.submit(claim)
        await finished(claim)

        await until(lambda: engine.state.counts[0] == 1)


async def test_effects_follow_the_commit() -> None:
    medium = SlowMedium()
    async with running(medium) as engine:
        seen: list[Effects] = []
        engine.on_effects = seen.append
        request = enqueue()
        engine.submit(request)
        await medium.begun.get()
        assert seen == []

        medium.gate.release()
        await finished(request)

        assert [effects.notify for effects in seen] == [True]


async def test_what_another_queue_must_get_is_told_again_after_a_start() -> None:
    medium = FakeMedium()
    wf = "eyJjaGFpbiI6W3sicHJlZml4Ijoib3RoZXIifV19"  # {"chain":[{"prefix":"other"}]}

    def sent(effects: Effects) -> None:
        outgoing.extend(effects.outgoing)

    outgoing: list[Outgoing] = []
    async with running(medium) as engine:
        job = enqueue("j", wf=wf)
        done = Request(lambda state, now: state.ack(JobRef("j"), now, result=b"1", advance=True))
        engine.submit(job)
        engine.submit(done)
        await finished(done)
    engine = Engine("q", FakeStorage(medium), QueueSettings(prefix="q"), system_clock)
    engine.on_effects = sent
    await engine.load()
    await until(lambda: bool(outgoing))
    await engine.aclose()

    assert outgoing[0].job.job_id == "j.next"


async def test_closing_writes_what_waits() -> None:
    medium = FakeMedium()
    engine = Engine("q", FakeStorage(medium), QueueSettings(), system_clock)
    await engine.load()
    request = enqueue("last")
    engine.submit(request)

    await engine.aclose()

    assert request.error is None
    assert request.ended.is_set()
    assert len(medium.rows_by_seq) == 1
    late = enqueue()
    engine.submit(late)
    assert isinstance(late.error, StorageUnavailableError)


async def test_closing_does_not_wait_for_a_medium_that_never_comes_back() -> None:
    medium = FakeMedium()
    engine = Engine("q", FakeStorage(medium), QueueSettings(), system_clock)
    await engine.load()
    medium.failures = 10**9
    request = enqueue()
    engine.submit(request)
    await finished(request)

    async with asyncio.timeout(2):
        await engine.aclose()


async def test_a_medium_that_cannot_be_read_keeps_the_engine_from_starting() -> None:
    medium = FakeMedium()
    medium.failures = 1
    engine = Engine("q", FakeStorage(medium), QueueSettings(), system_clock)

    with pytest.raises(StorageUnavailableError, match="the disk is full"):
        await engine.load()


async def test_a_flood_is_served_in_bounded_turns() -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        requests = [enqueue() for _ in range(2500)]
        for request in requests:
            engine.submit(request)
        await finished(*requests)

        assert [len(batch.rows) for batch in medium.commits] == [1000, 1000, 500]


async def test_a_failure_that_goes_on_is_logged_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    medium = FakeMedium()
    async with running(medium) as engine:
        medium.failures = 3
        failing = enqueue()
        engine.submit(failing)
        await finished(failing)
        await until(lambda: engine.down_reason is None)
        working = enqueue()
        engine.submit(working)
        await finished(working)

    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "the disk is full" in caplog.messages[0]
    assert "works again" in caplog.messages[1]


def test_a_timer_that_is_due_at_once_is_no_trouble_under_uvloop() -> None:
    loop = pytest.importorskip("uvloop").new_event_loop()
    troubles: list[object] = []
    loop.set_exception_handler(lambda _, context: troubles.append(context))

    async def claim_in_vain() -> None:
        async with running(FakeMedium()) as engine:
            waiters = [FakeWaiter() for _ in range(300)]
            for number, waiter in enumerate(waiters):
                engine.submit(claim(waiter, wait_s=number / 5000))
            while not waiters[-1].answers:
                engine.submit(Request(lambda state, now: state.stats(now)))
                await asyncio.sleep(0)

    try:
        loop.run_until_complete(claim_in_vain())
    finally:
        loop.close()
    assert troubles == []
