"""The client against a live owner: retries that cannot duplicate, joined enqueues, waiting, the sync facade."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from istos_worker.client import Client, SyncClient
from istos_worker.errors import (
    BadRequestError,
    ForbiddenError,
    IstosError,
    OwnerUnreachable,
    PayloadTooLargeError,
    UnauthorizedError,
)
from istos_worker.task import JobHandle
from istos_worker.wire.auth import AuthContext, TokenAuthorizer
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.live import Live, Raw, free_endpoint, live_node, until


@pytest.fixture
async def node() -> AsyncIterator[Live]:
    async with live_node() as live:
        yield live


@pytest.fixture
async def client(node: Live) -> Client:
    await node.own(keep_results=True)
    return await node.client()


async def ready(client: Client, prefix: str = "jobs/a") -> int:
    return int((await client.stats(prefix))["counts"]["ready"])


async def test_what_is_enqueued_is_what_is_claimed(node: Live, client: Client) -> None:
    job_id = await client.enqueue("jobs/a", {"to": "ä"}, priority=1)

    job = await client.call("jobs/a", "claim")

    assert job["job_id"] == job_id
    assert base64.b64decode(job["data"]).decode() == '{"to":"ä"}'


async def test_a_job_is_named_by_its_id_or_by_whatever_carries_it(client: Client) -> None:
    job_id = await client.enqueue("jobs/a", 1)
    handle: JobHandle[None] = JobHandle(AsyncMock(), "jobs/a", job_id)

    assert (await client.result("jobs/a", handle))["state"] == "ready"
    assert "ready" in (await client.why("jobs/a", handle))["why"]
    assert (await client.cancel("jobs/a", handle))["ok"]
    assert await client.dead_requeue("jobs/a", handle) == 0


@pytest.mark.parametrize("job", [None, 7, b"id", ["id"], Client])
async def test_what_is_no_id_is_refused_and_not_asked_for(client: Client, job: Any) -> None:
    for method in (client.result, client.cancel, client.why):
        with pytest.raises(TypeError, match=r"job_id must be the id that enqueue\(\) returned.*got \w+"):
            await method("jobs/a", job)


async def test_enqueues_of_one_loop_turn_travel_together(client: Client) -> None:
    await client.enqueue("jobs/a", 0)

    ids = await asyncio.gather(*(client.enqueue("jobs/a", number) for number in range(50)))
    jobs = (await client.call("jobs/a", "claim", {"n": 100}))["jobs"]

    assert [job["job_id"] for job in jobs[1:]] == ids
    assert [base64.b64decode(job["data"]) for job in jobs] == [
        b"0",
        *(str(number).encode() for number in range(50)),
    ]
    assert len({job_id.partition(".")[0] for job_id in ids}) == 1


async def test_enqueues_wait_for_an_owner_that_comes_later(node: Live) -> None:
    client = await node.client()
    early = asyncio.gather(*(client.enqueue("jobs/late", number, timeout_s=20) for number in range(3)))
    await Raw(await node.connect(), "jobs/late").bytes("info")

    await node.own("jobs/late")

    assert len(set(await early)) == 3
    assert await ready(client, "jobs/late") == 3


async def test_no_owner_is_told_with_the_queue_and_what_to_do(node: Live) -> None:
    client = await node.client()

    with pytest.raises(OwnerUnreachable, match=r"jobs/none.*istos-queue serve --queue jobs/none") as told:
        await client.enqueue("jobs/none", 1, timeout_s=0.1)

    assert told.value.code == "not_found"


async def test_an_owner_that_is_replaced_gets_a_pending_enqueue_once(node: Live) -> None:
    first = await node.own("jobs/b")
    client = await node.client()
    await client.enqueue("jobs/b", 0)
    await first.aclose()
    pending = asyncio.create_task(client.enqueue("jobs/b", 1, timeout_s=20))

    await node.own("jobs/b")

    await pending
    assert await ready(client, "jobs/b") == 1


async def test_a_body_that_is_too_large_fails_alone(client: Client) -> None:
    small, large = await asyncio.gather(
        client.enqueue("jobs/a", "small"),
        client.enqueue("jobs/a", "x" * (8 * 1024 * 1024)),
        return_exceptions=True,
    )

    assert isinstance(small, str)
    assert isinstance(large, PayloadTooLargeError)


async def test_many_items_are_sent_in_batches(client: Client) -> None:
    ids = await client.enqueue_many("jobs/a", range(2500))

    assert len(set(ids)) == 2500
    assert await ready(client) == 2500


async def test_a_named_batch_may_be_sent_again(client: Client) -> None:
    once = await client.enqueue_many("jobs/a", [1, 2], job_id="b")
    again = await client.enqueue_many("jobs/a", [1, 2], job_id="b")

    assert once == again == ["b.0", "b.1"]
    assert await ready(client) == 2


async def test_a_unique_key_gives_the_job_that_holds_it(client: Client) -> None:
    first = await client.enqueue("jobs/a", 1, unique_key="k")

    assert await client.enqueue("jobs/a", 2, unique_key="k") == first


async def test_nonsense_is_refused(client: Client) -> None:
    with pytest.raises(BadRequestError):
        await client.enqueue("jobs/a", 1, delay_s=-1)
    with pytest.raises(BadRequestError):
        await client.enqueue("jobs/*", 1)
    with pytest.raises(BadRequestError):
        await client.enqueue("jobs/a", 1, job_id="a b")


async def test_a_result_is_waited_for_without_polling(node: Live, client: Client) -> None:
    job_id = await client.enqueue("jobs/a", 1)
    job = await client.call("jobs/a", "claim")
    waiting = asyncio.create_task(client.result("jobs/a", job_id, wait_s=30))
    await client.stats("jobs/a")

    raw = Raw(await node.connect())
    await raw("ack", b'{"sum": 3}', job_id=job_id, fence=job["fence"])

    assert await waiting == {"state": "done", "result": {"sum": 3}}
    assert await client.result("jobs/a", "unknown-id", wait_s=30) == {"state": "unknown", "result": None}


async def test_dead_letters_are_listed_requeued_and_purged(node: Live, client: Client) -> None:
    raw = Raw(await node.connect())
    ids = [await client.enqueue("jobs/a", number, max_attempts=1) for number in range(3)]
    for job_id in ids:
        await raw("claim")
        await raw("nack", b"boom", job_id=job_id, attempt=1)

    letters = await client.dead_letters("jobs/a")

    assert letters[0] == {"job_id": ids[0], "attempts": 1, "last_error": "boom", "data": 0}
    assert len(await client.dead_letters("jobs/a", limit=2)) == 2
    assert await client.dead_requeue("jobs/a", ids[0]) == 1
    assert await client.dead_purge("jobs/a") == 2


async def test_the_queue_is_managed(client: Client) -> None:
    job_id = await client.enqueue("jobs/a", 1, delay_s=60)

    await client.pause("jobs/a")
    assert (await client.stats("jobs/a"))["paused"] is True
    await client.resume("jobs/a")
    assert "may start" in (await client.why("jobs/a", job_id))["why"]
    assert await client.cancel("jobs/a", job_id) == {"ok": True, "state": "cancelled"}
    assert (await client.info("jobs/a"))["protocol"] == 1
    assert await client.workers("jobs/a") == []


async def finish(raw: Raw, result: bytes) -> dict[str, Any]:
    """Runs the next job as one of our workers would."""
    job = await raw("claim", n=1, worker="w", seq=_next_seq())
    (one,) = job["jobs"]
    await raw("ack", result, job_id=one["job_id"], fence=one["fence"], advance=1)
    return dict(one)


_seqs = iter(range(1, 1000))


def _next_seq() -> int:
    return next(_seqs)


async def test_a_chain_crosses_queues_exactly_once(node: Live, client: Client) -> None:
    await node.own("jobs/second")
    first_id = await client.chain(["jobs/a", "jobs/second"], {"url": "x"})
    first, second = Raw(await node.connect()), Raw(await node.connect(), "jobs/second")

    await finish(first, b'"fetched"')

    async def has_arrived() -> bool:
        return await ready(client, "jobs/second") == 1

    await until(has_arrived)
    job = await finish(second, b'"stored"')
    assert job["job_id"] == f"{first_id}.next"
    assert base64.b64decode(job["data"]) == b'"fetched"'


async def test_a_continuation_waits_for_its_owner(node: Live, client: Client) -> None:
    await client.chain(["jobs/a", "jobs/later"], 1)
    await finish(Raw(await node.connect()), b"2")

    await node.own("jobs/later")

    async def has_arrived() -> bool:
        return await ready(client, "jobs/later") == 1

    await until(has_arrived)


async def test_a_chord_calls_back_with_all_results(node: Live, client: Client) -> None:
    ids = await client.chord("jobs/a", [1, 2, 3], callback=("jobs/a", {"meta": True}))
    raw = Raw(await node.connect())

    for number in range(3):
        await finish(raw, str(number * 10).encode())
    callback = await finish(raw, b"null")

    assert len(set(ids)) == 3
    assert base64.b64decode(callback["data"]) == b'{"results":[0,10,20],"input":{"meta":true}}'


async def test_a_chord_of_nothing_calls_back_at_once(node: Live, client: Client) -> None:
    assert await client.chord("jobs/a", [], callback=("jobs/a", 1)) == []

    callback = await finish(Raw(await node.connect()), b"null")

    assert base64.b64decode(callback["data"]) == b'{"results":[],"input":1}'


async def test_a_token_may_do_what_it_was_given(node: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authorizer = TokenAuthorizer({"producer-secret": {"enqueue", "result"}, "admin-secret": "*"})
    await node.own("jobs/t", authorizer=authorizer)
    nobody = await node.client()
    producer = await node.client(token="producer-secret")
    admin = await node.client(token=b"admin-secret")

    with pytest.raises(UnauthorizedError) as unauthorized:
        await nobody.enqueue("jobs/t", 1)
    ids = await asyncio.gather(*(producer.enqueue("jobs/t", number) for number in range(3)))
    with pytest.raises(ForbiddenError) as forbidden:
        await producer.call("jobs/t", "claim")
    assert await nobody.enqueue("jobs/t", 1, token="producer-secret")

    assert len(set(ids)) == 3
    assert (await admin.stats("jobs/t"))["counts"]["ready"] == 4
    told = f"{unauthorized.value} {forbidden.value} {caplog.text} {authorizer!r}"
    assert "secret" not in told


async def test_a_slow_authorizer_delays_only_its_own_caller(node: Live) -> None:
    gate = asyncio.Event()

    async def authorizer(ctx: AuthContext) -> bool:
        if ctx.token == "slow":
            await gate.wait()
        return True

    await node.own("jobs/t", authorizer=authorizer)
    client = await node.client()
    slow = asyncio.create_task(client.enqueue("jobs/t", 1, token="slow", timeout_s=20))

    await client.enqueue("jobs/t", 2)
    assert not slow.done()
    gate.set()

    await slow
    assert await ready(client, "jobs/t") == 2


async def test_an_authorizer_that_never_decides_is_a_refusal(
    node: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("istos_worker.queue.role_gate.PATIENCE_S", 0.05)

    async def authorizer(ctx: AuthContext) -> bool:
        await asyncio.Event().wait()
        return True

    await node.own("jobs/t", authorizer=authorizer)
    client = await node.client()

    with pytest.raises(IstosError, match="not decided"):
        await client.enqueue("jobs/t", 1)


async def test_a_call_that_an_authorizer_ponders_goes_to_the_next_owner(node: Live) -> None:
    asked = asyncio.Event()

    async def authorizer(ctx: AuthContext) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    first = await node.own("jobs/t", authorizer=authorizer)
    client = await node.client()
    pending = asyncio.create_task(client.enqueue("jobs/t", 1, timeout_s=20))
    await asked.wait()
    await first.aclose()

    await node.own("jobs/t")

    assert await pending
    assert await ready(client, "jobs/t") == 1


async def test_a_failing_authorizer_is_a_refusal(node: Live) -> None:
    def authorizer(ctx: AuthContext) -> bool:
        raise KeyError(ctx.verb)

    await node.own("jobs/t", authorizer=authorizer)
    client = await node.client()

    with pytest.raises(IstosError, match="authorizer failed") as told:
        await client.enqueue("jobs/t", 1)
    assert told.value.code == "internal_error"


async def test_sync_code_enqueues_from_any_thread(node: Live, client: Client) -> None:
    sync = SyncClient(node.settings)

    try:
        ids = await asyncio.gather(
            *(asyncio.to_thread(sync.enqueue, "jobs/a", number) for number in range(8))
        )
        with pytest.raises(OwnerUnreachable):
            await asyncio.to_thread(sync.enqueue, "jobs/none", 1, timeout_s=0.05)
        found = await asyncio.to_thread(sync.result, "jobs/a", ids[0])
    finally:
        await asyncio.to_thread(sync.close)

    assert len(set(ids)) == 8
    assert found["state"] == "ready"
    assert await ready(client) == 8


async def test_a_sync_enqueue_waits_for_an_owner_that_comes_back(node: Live, client: Client) -> None:
    role = await node.own("jobs/moves")
    sync = SyncClient(node.settings)
    try:
        await asyncio.to_thread(sync.enqueue, "jobs/moves", 1)
        role.unbind()
        waiting = asyncio.create_task(asyncio.to_thread(sync.enqueue, "jobs/moves", 2, job_id="two"))
        refused = asyncio.create_task(asyncio.to_thread(sync.enqueue, "jobs/moves", 3, timeout_s=0.05))
        with pytest.raises(OwnerUnreachable, match=r"no owner of queue 'jobs/moves' answered within 0\.05 s"):
            await refused
        await role.bind(node.session, asyncio.get_running_loop())

        assert await waiting == "two"
    finally:
        await asyncio.to_thread(sync.close)
    assert await ready(client, "jobs/moves") == 2


async def test_a_sync_enqueue_is_refused_as_an_async_one(node: Live) -> None:
    await node.own("jobs/t", authorizer=TokenAuthorizer({"right": "*"}))
    sync = SyncClient(node.settings, token="right")
    try:
        await asyncio.to_thread(sync.enqueue, "jobs/t", 1)

        with pytest.raises(UnauthorizedError):
            await asyncio.to_thread(sync.enqueue, "jobs/t", 1, token="wrong")
        with pytest.raises(BadRequestError, match="delay_s must not be negative"):
            await asyncio.to_thread(sync.enqueue, "jobs/t", 1, delay_s=-1)
    finally:
        await asyncio.to_thread(sync.close)


async def test_a_session_after_a_fork_is_refused_instead_of_hanging(node: Live) -> None:
    sync = SyncClient(node.settings)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sync.enqueue("jobs/a", 1)
        except IstosError as refused:
            os.write(writing, str(refused).encode())
        finally:
            os._exit(0)
    os.close(writing)

    told = await asyncio.to_thread(os.read, reading, 1000)
    os.close(reading)
    await asyncio.to_thread(os.waitpid, pid, 0)

    assert b"forked" in told


async def test_nobody_at_the_address_is_told(node: Live) -> None:
    nowhere = free_endpoint()

    with pytest.raises(OwnerUnreachable, match=nowhere):
        await Client(ZenohSettings(connect=(nowhere,), connect_timeout_s=0.2)).open()
