"""Every verb of docs/protocol.md, over loopback, against a live owner."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from istos_worker.wire.keys import VERBS, notify_key, orders_key, worker_key
from tests.fixtures.live import Live, Raw, live_node, until
from tests.fixtures.local import LOCAL


@pytest.fixture
async def node() -> AsyncIterator[Live]:
    async with live_node() as live:
        yield live


@pytest.fixture
async def raw(way: str, heard: list[str], node: Live) -> AsyncIterator[Raw]:
    await node.own(keep_results=True, retry_backoff_s=0.0)
    session = await node.connect()
    await session.ask("jobs/a/info")
    yield Raw(session)
    assert bool(heard) == (way == LOCAL)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def into(queue: asyncio.Queue[bytes]) -> Callable[[list[bytes]], None]:
    def take(seen: list[bytes]) -> None:
        for one in seen:
            queue.put_nowait(one)

    return take


def outcomes(*listed: dict[str, Any]) -> bytes:
    return orjson.dumps({"outcomes": listed})


async def test_a_job_goes_the_base_way_byte_for_byte(raw: Raw) -> None:
    job_id = await raw.enqueue(b'{"to": "a"}', priority=3)

    job = await raw("claim")
    acked = await raw("ack", b'"sent"', job_id=job_id)
    found = await raw("result", job_id=job_id)

    assert job == {
        "job_id": job_id,
        "attempt": 1,
        "max_attempts": 5,
        "last_error": None,
        "data": b64(b'{"to": "a"}'),
        "wf": None,
        "correlation_id": None,
        "traceparent": None,
        "fence": 1,
    }
    assert acked == {"ok": True}
    assert found == {"state": "done", "result": b64(b'"sent"')}


async def test_an_empty_queue_answers_a_base_claim_at_once(raw: Raw) -> None:
    assert await raw("claim") == {"empty": True}


async def test_a_nack_tells_what_became_of_the_job(raw: Raw) -> None:
    job_id = await raw.enqueue(max_attempts=2)

    await raw("claim")
    first = await raw("nack", b"boom", job_id=job_id, attempt=1)
    await raw("claim")
    second = await raw("nack", b"boom again", job_id=job_id, attempt=2)
    third = await raw("nack", b"late", job_id=job_id, attempt=2)
    dead = await raw("dead")

    assert first == {"ok": True, "disposition": "requeued"}
    assert second == {"ok": True, "disposition": "dead"}
    assert third["ok"] is False
    assert third["disposition"] is None
    (letter,) = dead["jobs"]
    assert (letter["job_id"], letter["attempts"], letter["last_error"]) == (job_id, 2, "boom again")
    assert letter["data"] == b64(b"1")


async def test_the_envelope_travels_with_the_job(raw: Raw) -> None:
    tp = f"00-{'a' * 32}-{'b' * 16}-01"
    await raw.bytes("enqueue", b"1", token=orjson.dumps({"tok": "t", "cid": "order-7", "tp": tp}))

    job = await raw("claim")

    assert (job["correlation_id"], job["traceparent"]) == ("order-7", tp)


async def test_a_retried_enqueue_enqueues_nothing(raw: Raw) -> None:
    first = await raw("enqueue", b"1", job_id="mine")
    again = await raw("enqueue", b"1", job_id="mine")

    assert first == {"job_id": "mine"}
    assert again == {"job_id": "mine", "duplicate": True}
    assert (await raw("stats"))["counts"]["ready"] == 1


async def test_a_batch_is_there_as_a_whole_and_once(raw: Raw) -> None:
    payload = orjson.dumps([{"n": 1}, "two", 3.0])

    first = await raw("enqueue_many", payload, job_id="b")
    again = await raw("enqueue_many", payload, job_id="b")
    jobs = (await raw("claim", n=9))["jobs"]

    assert first == {"job_ids": ["b.0", "b.1", "b.2"]}
    assert again == {"job_ids": ["b.0", "b.1", "b.2"], "duplicates": 3}
    assert [orjson.loads(base64.b64decode(job["data"])) for job in jobs] == [{"n": 1}, "two", 3.0]


async def test_a_batch_in_base64_keeps_every_byte(raw: Raw) -> None:
    bodies = [b"\x00\xff", b'{"big": 123456789012345678901234567890}']

    await raw("enqueue_many", orjson.dumps([b64(body) for body in bodies]), encoding="base64")
    jobs = (await raw("claim", n=2))["jobs"]

    assert [base64.b64decode(job["data"]) for job in jobs] == bodies


async def test_a_batch_told_by_its_sizes_keeps_every_byte_and_its_workflows(raw: Raw) -> None:
    bodies = [b"\x00\xff\n", b"", b'{"big": 123456789012345678901234567890}']
    wf = b64(b'{"chain":[{"prefix":"jobs/b"}]}')
    head = orjson.dumps({"bodies": [3, 0, 39], "wfs": [None, wf, None]})

    reply = await raw("enqueue_many", head + b"\n" + b"".join(bodies), encoding="sized", job_id="b")
    jobs = (await raw("claim", n=3))["jobs"]

    assert reply == {"job_ids": ["b.0", "b.1", "b.2"]}
    assert [base64.b64decode(job["data"]) for job in jobs] == bodies
    assert [job["wf"] for job in jobs] == [None, wf, None]


async def test_a_plain_batch_keeps_large_numbers(raw: Raw) -> None:
    await raw("enqueue_many", b"[123456789012345678901234567890]")

    job = await raw("claim")

    assert base64.b64decode(job["data"]) == b"123456789012345678901234567890"


async def test_a_waiting_claim_is_answered_when_a_job_comes(raw: Raw) -> None:
    waiting = asyncio.create_task(raw("claim", n=4, wait=20, worker="w", seq=1))
    while (await raw("workers"))["workers"] == []:
        pass

    job_id = await raw.enqueue()
    answer = await waiting

    assert [job["job_id"] for job in answer["jobs"]] == [job_id]
    assert answer["lease_s"] == 30.0


async def test_a_waiting_claim_ends_empty_when_its_time_is_over(raw: Raw) -> None:
    assert await raw("claim", n=1, wait=0.05, worker="w", seq=1) == {"jobs": [], "lease_s": 30.0}


async def test_a_repeated_claim_gets_the_same_jobs(raw: Raw) -> None:
    await raw.enqueue()
    await raw.enqueue()

    first = await raw("claim", n=1, worker="w", seq=1)
    again = await raw("claim", n=1, worker="w", seq=1)
    following = await raw("claim", n=1, worker="w", seq=2)

    assert first == again
    assert following["jobs"][0]["job_id"] != first["jobs"][0]["job_id"]


async def test_a_worker_gets_only_tasks_it_knows(raw: Raw) -> None:
    await raw.enqueue(b'{"task": "send", "args": [], "kwargs": {}}')

    other = await raw("claim", n=1, worker="a", seq=1, tasks="print,*")
    right = await raw("claim", n=1, worker="b", seq=1, tasks="send")

    assert other["jobs"] == []
    assert len(right["jobs"]) == 1


async def test_a_stale_outcome_changes_nothing(raw: Raw) -> None:
    job_id = await raw.enqueue()
    stale = await raw("claim")
    await raw("release", job_id=job_id, fence=stale["fence"])
    await raw("claim")

    for verb in ("ack", "nack", "release"):
        reply = await raw(verb, b"x", job_id=job_id, fence=stale["fence"])
        assert reply["ok"] is False
        assert reply["stale"] is True
    extended = await raw("extend", job_id=job_id, fence=stale["fence"])
    assert extended["lost"] == [job_id]
    assert (await raw("result", job_id=job_id))["state"] == "leased"


async def test_settle_takes_outcomes_and_gives_the_next_jobs(raw: Raw) -> None:
    for _ in range(5):
        await raw.enqueue(max_attempts=1)
    first = (await raw("claim", n=4, worker="w", seq=1))["jobs"]
    held = [{key: job[key] for key in ("job_id", "attempt", "fence")} for job in first]

    reply = await raw(
        "settle",
        outcomes(
            {**held[0], "verb": "ack", "result": b64(b'"r"'), "advance": True},
            {**held[1], "verb": "nack", "error": "boom"},
            {**held[2], "verb": "release"},
            {**held[3], "verb": "ack", "result": None, "fence": 999},
        ),
        n=1,
        worker="w",
        seq=2,
    )

    assert reply["outcomes"] == [
        {"ok": True},
        {"ok": True, "disposition": "dead"},
        {"ok": True},
        {"ok": False, "stale": True},
    ]
    assert [job["job_id"] for job in reply["jobs"]] == [held[2]["job_id"]]
    assert (await raw("result", job_id=held[0]["job_id"]))["result"] == b64(b'"r"')


async def test_extend_renews_many_and_names_those_to_cancel(raw: Raw) -> None:
    kept, cancelled = await raw.enqueue(), await raw.enqueue()
    jobs = (await raw("claim", n=2, worker="w", seq=1))["jobs"]
    await raw("cancel", job_id=cancelled)
    refs = [{"job_id": job["job_id"], "fence": job["fence"]} for job in jobs]

    reply = await raw("extend", orjson.dumps({"jobs": [*refs, {"job_id": "gone", "fence": 1}]}))

    assert kept not in reply["lost"]
    assert reply == {"ok": False, "lost": ["gone"], "cancelled": [cancelled], "lease_s": 30.0}


async def test_a_result_is_waited_for(raw: Raw) -> None:
    job_id = await raw.enqueue()
    await raw("claim")
    waiting = asyncio.create_task(raw("result", job_id=job_id, wait=20))
    await raw("stats")

    await raw("ack", b'"late"', job_id=job_id)

    assert await waiting == {"state": "done", "result": b64(b'"late"')}
    assert await raw("result", job_id="never", wait=20) == {"state": "unknown", "result": None}


async def test_a_chord_report_completes_once(raw: Raw) -> None:
    first = await raw("chord", b64(b"1").encode(), chord_id="c", index=0, size=2)
    second = await raw("chord", b64(b"2").encode(), chord_id="c", index=1, size=2)
    wrong = await raw("chord", b"", chord_id="c", index=7, size=2)

    assert first == {"complete": False, "results": None}
    assert second == {"complete": True, "results": [b64(b"1"), b64(b"2")]}
    assert wrong == {"complete": False, "error": "invalid_chord"}


async def test_dead_letters_come_in_pages_and_go(raw: Raw) -> None:
    ids = [await raw.enqueue(max_attempts=1) for _ in range(3)]
    for _ in ids:
        job = await raw("claim")
        await raw("nack", b"boom", job_id=job["job_id"], attempt=1)

    page = await raw("dead", limit=2)
    rest = await raw("dead", limit=2, after=page["next"])

    assert [job["job_id"] for job in (*page["jobs"], *rest["jobs"])] == ids
    assert rest["next"] is None
    assert await raw("requeue", job_id=ids[0]) == {"requeued": 1}
    assert await raw("purge", job_id=ids[1]) == {"purged": 1}
    assert await raw("requeue", all=1) == {"requeued": 1}
    assert (await raw("dead"))["jobs"] == []


async def test_nothing_is_requeued_or_purged_unless_it_is_named(raw: Raw) -> None:
    for verb in ("requeue", "purge"):
        assert (await raw(verb))["code"] == "bad_request"


async def test_a_paused_queue_takes_jobs_and_gives_none(raw: Raw) -> None:
    assert await raw("pause") == {"ok": True, "paused": True}
    job_id = await raw.enqueue()
    assert await raw("claim") == {"empty": True}
    assert "paused" in (await raw("why", job_id=job_id))["why"]

    assert await raw("resume") == {"ok": True, "paused": False}
    assert (await raw("claim"))["job_id"] == job_id


async def test_a_waiting_job_is_cancelled_at_once(raw: Raw) -> None:
    job_id = await raw.enqueue()

    assert await raw("cancel", job_id=job_id) == {"ok": True, "state": "cancelled"}
    assert await raw("claim") == {"empty": True}


async def test_a_running_job_is_cancelled_by_an_order_to_its_worker(node: Live, raw: Raw) -> None:
    session = await node.connect()
    ordered: asyncio.Queue[bytes] = asyncio.Queue()
    session.subscribe(orders_key("jobs/a", "w"), into(ordered))
    worker = Raw(session)
    job_id = await worker.enqueue()
    job = (await worker("claim", n=1, worker="w", seq=1))["jobs"][0]

    asked = await raw("cancel", job_id=job_id)
    order = orjson.loads(await asyncio.wait_for(ordered.get(), 10))

    assert asked == {"ok": True, "state": "leased"}
    assert order == {"cancel": [{"job_id": job_id, "fence": job["fence"]}]}


async def test_the_news_of_work_is_published_when_nobody_waits_for_it(node: Live, raw: Raw) -> None:
    session = await node.connect()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    session.subscribe(notify_key("jobs/a"), into(heard))
    await Raw(session)("stats")

    await raw.enqueue()

    assert await asyncio.wait_for(heard.get(), 10) == b"1"


async def test_a_buried_worker_gives_its_jobs_back(raw: Raw) -> None:
    job_id = await raw.enqueue()
    await raw("claim", n=1, worker="w", seq=1)

    reply = await raw("bury", orjson.dumps({"running": []}), worker="w", reason="killed")

    assert reply == {"ok": True, "jobs": [job_id]}
    assert (await raw("claim", n=1, worker="v", seq=1))["jobs"][0]["job_id"] == job_id


async def test_the_owner_follows_the_tokens_of_workers(node: Live, raw: Raw) -> None:
    async def is_up() -> bool:
        return {"worker": "w", "held": 1, "up": True} in (await raw("workers"))["workers"]

    async def is_down() -> bool:
        return not await is_up()

    session = await node.connect()
    token = session.declare_token(worker_key("jobs/a", "w"))
    await Raw(session).enqueue()
    await Raw(session)("claim", n=1, worker="w", seq=1)
    await until(is_up)
    token.undeclare()
    await until(is_down)


async def test_a_tick_is_taken_once_and_remembered(raw: Raw) -> None:
    first = await raw("enqueue", b"1", schedule="daily", tick="2")
    again = await raw("enqueue", b"1", schedule="daily", tick="2")
    older = await raw("enqueue", b"1", schedule="daily", tick="1")

    assert "duplicate" not in first
    assert again["duplicate"] is True
    assert older["duplicate"] is True
    assert await raw("tick", schedule="daily") == {"last": "2"}
    assert await raw("tick", schedule="other") == {"last": None}


async def test_info_names_every_verb(raw: Raw) -> None:
    info = await raw("info")

    assert info["protocol"] == 1
    assert set(info["verbs"]) == VERBS
    assert info["limits"]["batch"] == 1000
    for verb in info["verbs"]:
        assert await raw.bytes(verb) is not None


@pytest.mark.parametrize(
    ("verb", "payload", "params", "code"),
    [
        ("enqueue", b"1", "priority=high", "bad_request"),
        ("enqueue", b"1", "delay=-1", "bad_request"),
        ("enqueue", b"1", "delay=nan", "bad_request"),
        ("enqueue", b"1", "job_id=a%20b", "bad_request"),
        ("enqueue", b"1", "wf=%21", "bad_request"),
        ("enqueue", b"x" * (8 * 1024 * 1024 + 1), "", "payload_too_large"),
        ("enqueue_many", b"{", "", "bad_request"),
        ("enqueue_many", b'["%%"]', "encoding=base64", "bad_request"),
        ("enqueue_many", b'["MQ=="]', "encoding=rot13", "bad_request"),
        ("enqueue_many", b"[" + b"1," * 1000 + b"1]", "", "payload_too_large"),
        ("enqueue_many", b"[" + b"1," * 1000 + b"1]\n" + b"1" * 1001, "encoding=sized", "payload_too_large"),
        ("enqueue_many", b"[1,2]\n12", "encoding=sized", "bad_request"),
        ("enqueue_many", b"[1]\n12", "encoding=sized", "bad_request"),
        ("enqueue_many", b"[3,-1]\n12", "encoding=sized", "bad_request"),
        ("enqueue_many", b"[true,1]\n12", "encoding=sized", "bad_request"),
        ("enqueue_many", b"[18446744073709551615]\n12", "encoding=sized", "bad_request"),
        ("enqueue_many", b'["1"]\n1', "encoding=sized", "bad_request"),
        ("enqueue_many", b"[1]1", "encoding=sized", "bad_request"),
        ("enqueue_many", b"12", "encoding=sized", "bad_request"),
        ("claim", b"", "n=1001", "bad_request"),
        ("claim", b"", ";".join(f"p{n}=1" for n in range(40)), "bad_request"),
        ("settle", b'{"outcomes": 7}', "", "bad_request"),
        ("settle", b'{"outcomes": [{"verb": "sell", "job_id": "x"}]}', "", "bad_request"),
        ("extend", b"[]", "", "bad_request"),
        ("why", b"", "", "bad_request"),
        ("bury", b"", "", "bad_request"),
    ],
)
async def test_what_cannot_be_is_refused_at_the_door(
    raw: Raw, verb: str, payload: bytes, params: str, code: str
) -> None:
    answer = await raw.bytes(verb, payload, params=params)

    assert answer is not None
    assert orjson.loads(answer)["code"] == code


async def test_a_long_error_text_is_cut(raw: Raw) -> None:
    job_id = await raw.enqueue(max_attempts=1)
    await raw("claim")

    await raw("nack", b"x" * 200_000, job_id=job_id, attempt=1)

    (letter,) = (await raw("dead"))["jobs"]
    assert len(letter["last_error"]) <= 64 * 1024
    assert "truncated" in letter["last_error"]


async def test_a_pattern_of_keys_touches_nothing(node: Live, raw: Raw) -> None:
    await raw.enqueue()
    session = await node.connect()

    answer = await session.ask("jobs/a/*", timeout_s=5)

    assert answer is not None
    assert orjson.loads(answer)["code"] == "bad_request"
    stats = await raw("stats")
    assert (stats["counts"]["ready"], stats["paused"]) == (1, False)


async def test_an_owner_that_leaves_lets_go_of_those_who_wait(node: Live) -> None:
    role = await node.own("jobs/b")
    session = await node.connect()
    waiting = session.ask("jobs/b/claim", "n=1;wait=20;worker=w;seq=1", timeout_s=30)
    while (await Raw(session, "jobs/b")("workers"))["workers"] == []:
        pass

    await role.aclose()

    assert await asyncio.wait_for(waiting, 10) is None
    assert role.is_active is False


async def test_a_second_owner_is_warned_about(node: Live, caplog: pytest.LogCaptureFixture) -> None:
    await node.own("jobs/b")
    second = await node.own("jobs/b")

    async def is_warned() -> bool:
        return "another owner" in caplog.text

    await until(is_warned)
    assert "--namespace" in caplog.text
    assert second.is_active
