"""QueueStore behaves like the peer's, whatever stores it. The peer's own class runs the same tests beside ours."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from istos.consistency.storage import InMemoryStoragePlugin
from istos.queue.store import QueueStore as PeerStore

from istos_worker.queue import QueueStore
from tests.unit.queue.fakes import FakeMedium, FakeStorage

_peer_plugin: Any = InMemoryStoragePlugin
KINDS = ["memory", "sqlite", "peer plugin", "fake medium", "the peer"]


class Opener:
    """Makes stores of one kind over one medium, as often as the test restarts."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.is_peer = kind == "the peer"
        self._open: list[Any] = []
        self._storage: Any = {
            "memory": lambda: "memory:",
            "sqlite": lambda: f"sqlite:///{folder}/queue.db",
            "peer plugin": _peer_plugin,
            "fake medium": lambda: FakeStorage(FakeMedium()),
            "the peer": _peer_plugin,
        }[kind]()

    async def open(self, **settings: Any) -> Any:
        made: Any = (PeerStore if self.is_peer else QueueStore)("jobs/x", self._storage, **settings)
        await made.load()
        self._open.append(made)
        return made

    async def reopen(self, store: Any, **settings: Any) -> Any:
        if self.kind == "memory":
            pytest.skip("nothing outlives a store in memory")
        if not self.is_peer:
            await store.aclose()
        return await self.open(**settings)

    async def aclose(self) -> None:
        if not self.is_peer:
            for store in self._open:
                await store.aclose()


@pytest.fixture(params=KINDS)
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    opener = Opener(request.param, tmp_path)
    yield opener
    await opener.aclose()


async def test_jobs_are_claimed_first_in_first_out(opener: Opener) -> None:
    store = await opener.open()
    ids = [await store.add(b"%d" % number, max_attempts=3) for number in range(4)]

    claimed = [await store.claim(lease_s=30) for _ in range(5)]

    assert [job and job.id for job in claimed] == [*ids, None]
    assert [job.data for job in claimed[:4]] == [b"0", b"1", b"2", b"3"]


async def test_a_higher_priority_goes_first(opener: Opener) -> None:
    store = await opener.open()
    low = await store.add(b"low", max_attempts=3)
    high = await store.add(b"high", max_attempts=3, priority=10)

    assert [(await store.claim(lease_s=30)).id for _ in range(2)] == [high, low]


async def test_a_claimed_job_carries_the_peer_s_fields(opener: Opener) -> None:
    store = await opener.open()
    await store.add(b"body", max_attempts=3, priority=2, wf="e30=", correlation_id="cid", traceparent="tp")

    job = await store.claim(lease_s=30)

    assert (job.data, job.attempts, job.max_attempts, job.priority) == (b"body", 1, 3, 2)
    assert (job.wf, job.correlation_id, job.traceparent) == ("e30=", "cid", "tp")
    assert (job.state.value, job.last_error, job.result, job.completed_at) == ("leased", None, None, 0.0)
    assert job.lease_until > job.enqueued_at > 0


async def test_an_ack_without_kept_results_forgets_the_job(opener: Opener) -> None:
    store = await opener.open()
    job_id = await store.add(b"1", max_attempts=3)
    await store.claim(lease_s=30)

    assert await store.ack(job_id, result=b"42") is True

    assert await store.result(job_id) == ("unknown", None)
    assert await store.ack("never-was") is False


async def test_a_kept_result_survives_a_restart(opener: Opener) -> None:
    store = await opener.open(keep_results=True)
    job_id = await store.add(b"1", max_attempts=3)
    assert await store.result(job_id) == ("ready", None)
    await store.claim(lease_s=30)
    assert await store.result(job_id) == ("leased", None)
    await store.ack(job_id, result=b"\x0042")

    store = await opener.reopen(store, keep_results=True)

    assert await store.result(job_id) == ("done", b"\x0042")


async def test_a_failed_job_is_redelivered_and_then_dead(opener: Opener) -> None:
    store = await opener.open()
    job_id = await store.add(b"1", max_attempts=2)
    await store.claim(lease_s=30)
    assert await store.nack(job_id, error="first") == "requeued"
    assert (await store.claim(lease_s=30)).last_error == "first"
    assert await store.nack(job_id, error="second") == "dead"

    store = await opener.reopen(store)

    (letter,) = await store.dead_letters()
    assert (letter.id, letter.attempts, letter.last_error, letter.data) == (job_id, 2, "second", b"1")
    assert letter.state.value == "dead"
    assert await store.nack("never-was") is None


async def test_a_retry_may_be_delayed(opener: Opener) -> None:
    store = await opener.open()
    job_id = await store.add(b"1", max_attempts=3)
    await store.claim(lease_s=30)

    await store.nack(job_id, retry_delay_s=0.05)

    assert await store.claim(lease_s=30) is None
    await asyncio.sleep(0.06)
    assert (await store.claim(lease_s=30)).id == job_id


async def test_a_delayed_job_waits_also_over_a_restart(opener: Opener) -> None:
    store = await opener.open()
    job_id = await store.add(b"1", max_attempts=3, delay_s=0.2)
    store = await opener.reopen(store)
    assert await store.claim(lease_s=30) is None

    await asyncio.sleep(0.25)

    assert (await store.claim(lease_s=30)).id == job_id


async def test_an_expired_lease_is_counted_and_redelivered(opener: Opener) -> None:
    store = await opener.open()
    job_id = await store.add(b"1", max_attempts=3)
    await store.claim(lease_s=0.03)
    assert await store.sweep() == 0
    await asyncio.sleep(0.05)

    assert await store.sweep() == 1
    assert await store.sweep() == 0
    assert (await store.claim(lease_s=30)).attempts == 2
    assert (await store.stats())["leased"] == 1
    assert job_id


async def test_an_expired_lease_of_the_last_attempt_is_dead(opener: Opener) -> None:
    store = await opener.open()
    await store.add(b"1", max_attempts=1)
    await store.claim(lease_s=0.03)
    await asyncio.sleep(0.05)

    await store.sweep()

    assert len(await store.dead_letters()) == 1


async def test_a_result_ages_out(opener: Opener) -> None:
    store = await opener.open(keep_results=True, result_ttl_s=0.03)
    job_id = await store.add(b"1", max_attempts=1)
    await store.claim(lease_s=30)
    await store.ack(job_id, result=b"1")
    await asyncio.sleep(0.05)

    await store.sweep()

    assert await store.result(job_id) == ("unknown", None)


async def test_stats_count_by_state(opener: Opener) -> None:
    store = await opener.open(keep_results=True)
    for _ in range(3):
        await store.add(b"1", max_attempts=1)
    await store.add(b"1", max_attempts=1, delay_s=60)
    for _ in range(2):
        await store.claim(lease_s=30)
    stats = await store.stats()

    assert (stats["ready"], stats["leased"], stats["dead"], stats["done"]) == (2, 2, 0, 0)


async def test_a_chord_completes_once_with_results_in_order(opener: Opener) -> None:
    store = await opener.open()
    r0, r1 = (base64.b64encode(raw).decode() for raw in (b"0", b"1"))

    assert await store.chord_report("c", 1, 2, r1) is None
    assert await store.chord_report("c", 1, 2, r1) is None
    assert await store.chord_report("c", 0, 2, r0) == [r0, r1]


async def test_a_chord_report_that_does_not_fit_is_a_value_error(opener: Opener) -> None:
    store = await opener.open()

    for index, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="outside size"):
            await store.chord_report("c", index, size, None)


async def test_only_a_medium_beyond_this_process_counts_as_shared(opener: Opener) -> None:
    store = await opener.open()

    if opener.kind in ("memory", "sqlite", "the peer"):
        assert store.is_shared == (opener.kind == "sqlite")


# beyond the peer


@pytest.fixture(params=[kind for kind in KINDS if kind != "the peer"])
async def ours(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    opener = Opener(request.param, tmp_path)
    yield opener
    await opener.aclose()


async def test_everything_that_was_answered_is_there_after_a_restart(ours: Opener) -> None:
    store = await ours.open(keep_results=True)
    ids = await asyncio.gather(*(store.add(b"%d" % number, max_attempts=5) for number in range(200)))
    claimed = [await store.claim(lease_s=60, worker="w", seq=seq) for seq in range(1, 100)]
    await asyncio.gather(*(store.ack(job.id, fence=job.fence, result=job.data) for job in claimed[:50]))
    await asyncio.gather(*(store.nack(job.id, fence=job.fence, error="x") for job in claimed[50:75]))
    before = await store.stats()

    store = await ours.reopen(store, keep_results=True)

    assert (
        await store.stats() == before == {"ready": 126, "leased": 24, "done": 50, "dead": 0, "cancelled": 0}
    )
    assert [await store.result(job.id) for job in claimed[:50]] == [
        ("done", job.data) for job in claimed[:50]
    ]
    assert len(ids) == len(set(ids)) == 200
    again = await store.claim(lease_s=60, worker="w", seq=100)
    assert again.fence > max(job.fence for job in claimed)


async def test_a_stale_delivery_changes_nothing(ours: Opener) -> None:
    store = await ours.open()
    job_id = await store.add(b"1", max_attempts=5)
    old = await store.claim(lease_s=0.02)
    await asyncio.sleep(0.04)
    new = await store.claim(lease_s=30)

    assert await store.ack(job_id, fence=old.fence) is False
    assert await store.nack(job_id, fence=old.fence) is None
    assert await store.release(job_id, fence=old.fence) is False
    assert (await store.extend(job_id, fence=old.fence)).lost == [job_id]
    assert await store.ack(job_id, fence=new.fence) is True
    assert await store.ack(job_id, fence=new.fence) is True


async def test_a_chosen_id_enqueues_once(ours: Opener) -> None:
    store = await ours.open()

    assert await store.add(b"1", max_attempts=1, job_id="a") == "a"
    assert await store.add(b"2", max_attempts=1, job_id="a") == "a"

    assert (await store.stats())["ready"] == 1


async def test_a_result_can_be_waited_for(ours: Opener) -> None:
    store = await ours.open()
    job_id = await store.add(b"1", max_attempts=1)
    waiting = asyncio.create_task(store.result(job_id, wait_s=10))
    await store.claim(lease_s=30)
    await store.ack(job_id, result=b"42")

    async with asyncio.timeout(5):
        assert await waiting == ("done", b"42")
    assert await store.result("never-was", wait_s=10) == ("unknown", None)


async def test_calls_need_no_load_before(ours: Opener) -> None:
    store = QueueStore("jobs/y")

    assert await store.claim(lease_s=1) is None
    await store.aclose()
