"""The public package istos 0.3.4 on our owner, and our client on its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zenoh
from istos import Istos, TokenAuthorizer
from istos.communication.config import IstosZenohConfig
from istos.errors import UnauthorizedError as PeerUnauthorized

from istos_worker.client import Client
from istos_worker.errors import IstosError, NotFoundError, OwnerUnreachable, UnauthorizedError
from istos_worker.observability.survey import Survey
from istos_worker.queue.role import QueueRole
from istos_worker.queue.store import QueueStore
from istos_worker.wire.asking import Incoming
from istos_worker.wire.auth import TokenAuthorizer as OurTokenAuthorizer
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.live import Live, free_endpoint, live_node, until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::istos.errors.IstosSecurityWarning"),
]


@pytest.fixture
async def node() -> AsyncIterator[Live]:
    async with live_node() as live:
        yield live


def peer_app(**config: Any) -> Istos:
    """A program of the public package, reachable or reaching by address only."""
    return Istos(
        config=IstosZenohConfig(multicast_scouting=False, **config),
        configure_logging=False,
        enable_health=False,
        enable_discovery=False,
    )


def peer_of(node: Live) -> Istos:
    return peer_app(mode="client", connect_endpoints=[node.endpoint])


@asynccontextmanager
async def peer_owner(*prefixes: str, **options: Any) -> AsyncIterator[ZenohSettings]:
    """An istos 0.3 owner; how to reach it."""
    endpoint = free_endpoint()
    app = peer_app(mode="peer", listen_endpoints=[endpoint])
    for prefix in prefixes:
        app.queue(prefix, **options)
    async with app.serving():
        yield ZenohSettings(connect=(endpoint,))


async def peer_result(app: Istos, prefix: str, job_id: str, **options: Any) -> Any:
    """The result, once the job is finished; a peer can only poll."""
    found: dict[str, Any] = {}

    async def is_finished() -> bool:
        found.update(await app.result(prefix, job_id, **options))
        return found["state"] not in ("ready", "leased")

    await until(is_finished)
    return found


# --- the peer on our owner ---------------------------------------------------------------------------


async def test_a_peers_worker_drains_our_owner(node: Live) -> None:
    await node.own("jobs/a", keep_results=True)
    app = peer_of(node)
    seen: list[Any] = []

    @app.worker("jobs/a", concurrency=2)
    async def double(job: Any) -> Any:
        seen.append(job)
        return job * 2

    async with app.serving():
        ids = [await app.enqueue("jobs/a", number) for number in range(20)]
        results = [await peer_result(app, "jobs/a", job_id) for job_id in ids]

    assert sorted(seen) == list(range(20))
    assert results == [{"state": "done", "result": number * 2} for number in range(20)]


async def test_our_notification_wakes_a_peers_idle_worker(node: Live) -> None:
    await node.own("jobs/a", keep_results=True)
    app = peer_of(node)
    client = await node.client()

    @app.worker("jobs/a", poll_interval_s=3600)
    async def work(job: Any) -> str:
        return "woken"

    async with app.serving():
        first = await client.enqueue("jobs/a", 1)
        await client.result("jobs/a", first, wait_s=10)
        second = await client.enqueue("jobs/a", 2)
        found = await client.result("jobs/a", second, wait_s=10)

    assert found["state"] == "done"


async def test_a_peer_sees_retries_context_and_dead_letters(node: Live) -> None:
    await node.own("jobs/a", max_attempts=2, retry_backoff_s=0.0)
    app = peer_of(node)
    seen: list[tuple[int, int, str | None]] = []

    @app.worker("jobs/a", poll_interval_s=0.05)
    async def fail(job: Any, ctx: Any) -> None:
        seen.append((ctx.attempt, ctx.max_attempts, ctx.last_error))
        raise ValueError(f"no {job}")

    async with app.serving():
        job_id = await app.enqueue("jobs/a", "luck")
        await peer_result(app, "jobs/a", job_id)
        letters = await app.dead_letters("jobs/a")

    assert seen == [(1, 2, None), (2, 2, "no luck")]
    assert letters == [{"job_id": job_id, "attempts": 2, "last_error": "no luck", "data": "luck"}]


async def test_a_peers_priorities_and_delays_hold(node: Live) -> None:
    await node.own("jobs/a")
    app = peer_of(node)
    client = await node.client()

    async with app.serving():
        late = await app.enqueue("jobs/a", "late", delay_s=0.2)
        low = await app.enqueue("jobs/a", "low")
        high = await app.enqueue("jobs/a", "high", priority=10)
        order = [(await client.call("jobs/a", "claim"))["job_id"] for _ in range(2)]
        delayed = await client.call("jobs/a", "claim", {"n": 1, "wait": 5, "worker": "w", "seq": 1})

    assert order == [high, low]
    assert [job["job_id"] for job in delayed["jobs"]] == [late]


async def test_a_peers_chain_and_chord_run_on_our_owner(node: Live) -> None:
    await node.own("jobs/a", keep_results=True)
    await node.own("jobs/b", keep_results=True)
    app = peer_of(node)
    finished: asyncio.Queue[Any] = asyncio.Queue()

    @app.worker("jobs/a")
    async def double(job: Any) -> Any:
        return job * 2

    @app.worker("jobs/b")
    async def collect(job: Any) -> None:
        await finished.put(job)

    async with app.serving(), asyncio.timeout(20):
        await app.chain(["jobs/a", "jobs/b"], 21)
        chained = await finished.get()
        await app.chord("jobs/a", [1, 2, 3], callback=("jobs/b", "meta"))
        collected = await finished.get()

    assert chained == 42
    assert collected == {"results": [2, 4, 6], "input": "meta"}


async def test_a_peers_token_is_read_bare_and_in_an_envelope(node: Live) -> None:
    await node.own("jobs/a", authorizer=OurTokenAuthorizer("s3cr3t"))
    app = peer_of(node)

    async with app.serving():
        with pytest.raises(PeerUnauthorized):
            await app.enqueue("jobs/a", 1)
        assert await app.enqueue("jobs/a", 1, token="s3cr3t")


async def test_our_role_binds_to_a_peers_own_session() -> None:
    endpoint = free_endpoint()
    config = zenoh.Config.from_json5(ZenohSettings(listen=(endpoint,), scouting="off").to_json5())
    session = await asyncio.to_thread(zenoh.open, config)
    role = QueueRole("jobs/a", QueueStore("jobs/a"))
    try:
        await role.bind(session, asyncio.get_running_loop())
        active = [role.is_active]
        async with Client(ZenohSettings(connect=(endpoint,))) as client:
            assert await client.enqueue("jobs/a", 1)
        role.unbind()
        active.append(role.is_active)
        await role.aclose()
        assert active == [True, False]
        assert not session.is_closed()
    finally:
        await asyncio.to_thread(session.close)


# --- our client on the peer's owner ------------------------------------------------------------------


async def test_our_client_speaks_the_base_protocol_to_a_peers_owner() -> None:
    async with peer_owner("jobs/a", keep_results=True) as settings, Client(settings) as client:
        ids = await asyncio.gather(*(client.enqueue("jobs/a", number) for number in range(5)))
        ids += await client.enqueue_many("jobs/a", [5, 6], priority=-1)
        claimed = [await client.call("jobs/a", "claim") for _ in range(7)]
        await client.call("jobs/a", "ack", {"job_id": claimed[0]["job_id"]})

        found = await client.result("jobs/a", claimed[0]["job_id"], wait_s=5)

        assert [job["job_id"] for job in claimed] == ids
        assert found == {"state": "done", "result": None}
        assert await client.result("jobs/a", "unknown", wait_s=5) == {"state": "unknown", "result": None}
        assert await client.dead_letters("jobs/a") == []


async def test_a_peers_owner_takes_what_is_to_be_there_once_and_tells_of_no_duplicate() -> None:
    async with peer_owner("jobs/a") as settings, Client(settings) as client:
        told = await client.enqueue_once("jobs/a", 1)

        assert told == {"job_id": (await client.call("jobs/a", "claim"))["job_id"], "duplicate": False}


async def test_a_peers_owner_is_in_the_picture_where_it_is_named() -> None:
    async with peer_owner("jobs/a") as settings, Survey(Client(settings), named=["jobs/a"]) as survey:
        (row,) = (await survey.look()).queues

        assert (row.state, row.ready) == ("refused", None)
        assert "istos 0.3" in row.note


async def test_a_peers_owner_runs_our_workflows() -> None:
    async with peer_owner("jobs/a", "jobs/b") as settings, Client(settings) as client:
        await client.chain(["jobs/a", "jobs/b"], 1)
        await client.chord("jobs/a", [1, 2], callback=("jobs/b", 1))

        flows = [(await client.call("jobs/a", "claim"))["wf"] for _ in range(3)]

        assert all(flows)


async def test_what_a_peers_owner_cannot_do_is_told() -> None:
    async with peer_owner("jobs/a") as settings, Client(settings) as client:
        with pytest.raises(IstosError, match=r"istos 0\.3.*unique_key"):
            await client.enqueue("jobs/a", 1, unique_key="k")
        with pytest.raises(NotFoundError, match=r"istos 0\.3.*pause"):
            await client.pause("jobs/a")
        with pytest.raises(NotFoundError, match=r"istos 0\.3"):
            await client.info("jobs/a")


async def test_a_peers_refusal_of_a_token_is_an_error_here() -> None:
    options = {"authorizer": TokenAuthorizer("s3cr3t")}
    async with peer_owner("jobs/a", **options) as settings, Client(settings) as client:
        with pytest.raises(UnauthorizedError):
            await client.enqueue("jobs/a", 1)
        assert await client.enqueue("jobs/a", 1, token="s3cr3t")


async def test_an_enqueue_that_a_peers_owner_leaves_open_is_not_repeated() -> None:
    """The peer would enqueue it twice."""
    async with Client(ZenohSettings(listen=(free_endpoint(),), scouting="off")) as client:
        session = client.session
        asked: list[str] = []

        def answer(seen: list[Incoming]) -> None:
            for one in seen:
                one.reply(b'{"state": "unknown", "result": null}')

        def swallow(seen: list[Incoming]) -> None:
            for one in seen:
                asked.append(one.key)
                one.drop()

        session.serve("jobs/a/result", answer)
        session.serve("jobs/a/enqueue", swallow)

        with pytest.raises(OwnerUnreachable, match="may or may not"):
            await client.enqueue("jobs/a", 1, timeout_s=5)

    assert asked == ["jobs/a/enqueue"]
