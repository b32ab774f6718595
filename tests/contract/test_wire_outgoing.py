"""Continuations for other queues, from owner to owner."""

from __future__ import annotations

import base64
from dataclasses import replace

import orjson
import pytest

from istos_worker.queue.role import QueueRole
from tests.fixtures.live import Raw, live_node, until


def chain(prefix: str) -> str:
    return base64.b64encode(orjson.dumps({"chain": [{"prefix": prefix}]})).decode()


async def run(raw: Raw, job_id: str, prefix: str, result: bytes = b"1") -> None:
    await raw.enqueue(job_id=job_id, wf=chain(prefix))
    job = await raw("claim")
    assert await raw("ack", result, job_id=job_id, fence=job["fence"], advance=1) == {"ok": True}


def accept_at_most(role: QueueRole, size: int) -> None:
    role.store.configure(replace(role.store.settings, max_payload_bytes=size))


@pytest.mark.parametrize(
    ("prefix", "reason"), [("jobs/b", "payload_too_large: the job's body has 300"), ("a//b", "bad_request")]
)
async def test_what_another_queue_refuses_for_good_is_a_dead_letter_and_keeps_nobody_waiting(
    prefix: str, reason: str
) -> None:
    async with live_node() as node:
        await node.own("jobs/a")
        accept_at_most(await node.own("jobs/b"), 100)
        session = await node.connect()
        here, there = Raw(session), Raw(session, "jobs/b")

        await run(here, "bad", prefix, b"1" * 300)
        await run(here, "good", "jobs/b")

        async def is_dead() -> bool:
            return bool((await here("stats"))["counts"]["dead"] == 1)

        async def has_arrived() -> bool:
            return bool((await there("result", job_id="good.next"))["state"] == "ready")

        await until(is_dead)
        await until(has_arrived)
        [letter] = (await here("dead"))["jobs"]
        assert letter["job_id"] == "bad.next"
        assert letter["last_error"].startswith(f"queue {prefix} refused it: {reason}")
        assert letter["last_error"] in (await here("why", job_id="bad.next"))["why"]


async def test_a_requeued_one_reaches_its_queue_once_that_takes_it() -> None:
    async with live_node() as node:
        await node.own("jobs/a")
        other = await node.own("jobs/b")
        accept_at_most(other, 100)
        session = await node.connect()
        here, there = Raw(session), Raw(session, "jobs/b")
        await run(here, "bad", "jobs/b", b"1" * 300)

        async def is_dead() -> bool:
            return bool((await here("stats"))["counts"]["dead"] == 1)

        async def has_arrived() -> bool:
            return bool((await there("result", job_id="bad.next"))["state"] == "ready")

        await until(is_dead)
        accept_at_most(other, 1000)
        assert await here("requeue", job_id="bad.next") == {"requeued": 1}
        await until(has_arrived)
        assert (await here("dead"))["jobs"] == []
