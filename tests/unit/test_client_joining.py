"""How the client sends: joined, split, repeated with the same ids, and never twice where that could duplicate."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from istos_worker.client import Client
from istos_worker.errors import IstosError, OwnerUnreachable
from istos_worker.wire.codec import decode_params

SILENT = object()
"""What an owner says that is there and does not answer."""
Answer = Callable[[dict[str, str], bytes], Any]


class Owner:
    """Answers in place of a session: a dict is a reply, None is nobody, SILENT is a timeout."""

    def __init__(self, **verbs: Answer) -> None:
        self.verbs = verbs
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    def count(self, verb: str) -> int:
        return Counter(asked for asked, _, _ in self.asked)[verb]

    def of(self, verb: str) -> list[tuple[dict[str, str], bytes]]:
        return [(params, payload) for asked, params, payload in self.asked if asked == verb]

    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        verb, told, body = key.rsplit("/", 1)[-1], decode_params(params), payload or b""
        self.asked.append((verb, told, body))
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        answer = self.verbs[verb](told, body) if verb in self.verbs else None
        if answer is SILENT:
            future.set_exception(TimeoutError())
        else:
            future.set_result(None if answer is None else orjson.dumps(answer))
        return future


def enqueued(params: dict[str, str], payload: bytes) -> Any:
    return {"job_id": params["job_id"]}


def enqueued_many(params: dict[str, str], payload: bytes) -> Any:
    told = orjson.loads(payload)
    bodies = told["bodies"] if isinstance(told, dict) else told
    return {"job_ids": [f"{params['job_id']}.{index}" for index in range(len(bodies))]}


def sized_many(params: dict[str, str], payload: bytes) -> Any:
    return enqueued_many(params, payload.partition(b"\n")[0])


def base_enqueued(params: dict[str, str], payload: bytes) -> Any:
    return {"job_id": f"theirs-{payload.decode()}"}


def says(answer: Any) -> Answer:
    return lambda params, payload: answer


def ours(**verbs: Answer) -> Owner:
    return Owner(
        **{"info": says({"protocol": 1}), "enqueue": enqueued, "enqueue_many": enqueued_many, **verbs}
    )


def peers(**verbs: Answer) -> Owner:
    return Owner(**{"result": says({"state": "unknown"}), "enqueue": base_enqueued, **verbs})


def client_of(owner: Owner) -> Client:
    session: Any = owner
    return Client(session=session)


async def test_one_job_is_sent_as_one_and_several_as_a_batch() -> None:
    owner = ours()
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 0)
        ids = await asyncio.gather(*(client.enqueue("jobs/a", number) for number in (1, 2, 3)))

    assert owner.count("enqueue") == 1
    ((params, payload),) = owner.of("enqueue_many")
    assert [base64.b64decode(body) for body in orjson.loads(payload)] == [b"1", b"2", b"3"]
    assert ids == [f"{params['job_id']}.{index}" for index in range(3)]


async def test_bodies_travel_as_they_are_to_an_owner_that_tells_it_takes_them_so() -> None:
    owner = ours(info=says({"protocol": 1, "encodings": ["base64", "sized"]}), enqueue_many=sized_many)
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 0)
        ids = await asyncio.gather(*(client.enqueue("jobs/a", number) for number in (1, 22, 3)))

    ((params, payload),) = owner.of("enqueue_many")
    assert (params["encoding"], payload) == ("sized", b"[1,2,1]\n1223")
    assert ids == [f"{params['job_id']}.{index}" for index in range(3)]


async def test_only_jobs_that_are_alike_travel_together() -> None:
    owner = ours()
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 0)
        await asyncio.gather(
            client.enqueue("jobs/a", 1),
            client.enqueue("jobs/a", 2, priority=1),
            client.enqueue("jobs/b", 3),
            client.enqueue("jobs/a", 4, token="t"),
            client.enqueue("jobs/a", 5, unique_key="k"),
            client.enqueue("jobs/a", 6, job_id="mine"),
            client.enqueue("jobs/a", 7),
        )

    assert owner.count("enqueue_many") == 1
    assert owner.count("enqueue") == 6


async def test_a_turn_with_very_many_jobs_is_split() -> None:
    owner = ours()
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 0)
        ids = await asyncio.gather(*(client.enqueue("jobs/a", number) for number in range(2300)))

    assert [len(orjson.loads(payload)) for _, payload in owner.of("enqueue_many")] == [1000, 1000, 300]
    assert len(set(ids)) == 2300


async def test_a_batch_is_repeated_with_the_same_ids() -> None:
    answers = iter((None, SILENT, None, "now"))

    def flaky(params: dict[str, str], payload: bytes) -> Any:
        answer = next(answers)
        return enqueued_many(params, payload) if answer == "now" else answer

    owner = ours(enqueue_many=flaky)
    async with client_of(owner) as client:
        ids = await client.enqueue_many("jobs/a", [1, 2])

    sent = owner.of("enqueue_many")
    assert len(sent) == 4
    assert all(one == sent[0] for one in sent)
    assert ids == [f"{sent[0][0]['job_id']}.{index}" for index in range(2)]


async def test_a_refusal_is_not_repeated() -> None:
    refusal = {"__istos_error": True, "error": "conflict", "code": "conflict", "message": "no"}
    owner = ours(enqueue=says(refusal))
    async with client_of(owner) as client:
        for _ in range(2):
            with pytest.raises(IstosError, match="no"):
                await client.enqueue("jobs/a", 1)

    assert owner.count("enqueue") == 2


async def test_a_silent_owner_is_told_apart_from_none() -> None:
    silent, nobody = ours(stats=says(SILENT)), Owner()
    async with client_of(silent) as client:
        with pytest.raises(OwnerUnreachable, match="overloaded or stuck"):
            await client.stats("jobs/a", timeout_s=0.05)
    async with client_of(nobody) as client:
        with pytest.raises(OwnerUnreachable, match="Start one with"):
            await client.stats("jobs/a", timeout_s=0.05)


async def test_an_enqueue_that_was_lost_on_its_way_is_sent_again_while_there_is_time() -> None:
    heard: list[str] = []

    def forgets_the_second(params: dict[str, str], payload: bytes) -> Any:
        heard.append(params["job_id"])
        return SILENT if len(heard) == 2 else enqueued(params, payload)

    owner = ours(enqueue=forgets_the_second)
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 1)
        job_id = await client.enqueue("jobs/a", 2, timeout_s=5.0)

    assert heard[1:] == [job_id, job_id]
    assert owner.count("info") == 2  # whoever is there may be another


async def test_an_enqueue_without_an_answer_is_given_up_when_its_time_is_over() -> None:
    answers = [enqueued, says(SILENT)]
    owner = ours(enqueue=lambda params, payload: answers[len(owner.of("enqueue")) > 1](params, payload))
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 1)
        with pytest.raises(OwnerUnreachable, match="within 2 s: it is there, but"):
            await client.enqueue("jobs/a", 2, timeout_s=2.0)

    assert owner.count("enqueue") == 2


async def test_a_peers_owner_gets_one_plain_enqueue_for_each_job() -> None:
    owner = peers()
    async with client_of(owner) as client:
        ids = await asyncio.gather(*(client.enqueue("jobs/a", number, priority=2) for number in range(3)))
        ids += await client.chord("jobs/a", [3], callback=("jobs/b", 1))

    assert ids == [f"theirs-{number}" for number in range(4)]
    assert [set(params) for params, _ in owner.of("enqueue")] == [{"priority"}] * 3 + [{"wf"}]
    assert owner.count("enqueue_many") == 0


@pytest.mark.parametrize("answer", [None, SILENT])
async def test_a_peers_owner_is_never_asked_twice_for_one_job(answer: object) -> None:
    owner = peers(enqueue=says(answer))
    async with client_of(owner) as client:
        with pytest.raises(OwnerUnreachable, match="may or may not"):
            await client.enqueue("jobs/a", 1)

    assert owner.count("enqueue") == 1


async def test_of_several_jobs_those_that_a_peers_owner_took_are_known() -> None:
    answers = iter(({"job_id": "one"}, None))
    owner = peers(enqueue=lambda params, payload: next(answers))
    async with client_of(owner) as client:
        first, second = await asyncio.gather(
            client.enqueue("jobs/a", 1), client.enqueue("jobs/a", 2), return_exceptions=True
        )

    assert first == "one"
    assert isinstance(second, OwnerUnreachable)


async def test_an_owner_that_was_replaced_by_another_kind_is_noticed() -> None:
    owner = ours()
    async with client_of(owner) as client:
        await client.enqueue("jobs/a", 1)
        del owner.verbs["info"], owner.verbs["enqueue_many"]
        owner.verbs.update(result=says({"state": "unknown"}), enqueue=base_enqueued)

        ids = await client.enqueue_many("jobs/a", [1, 2])

    assert ids == ["theirs-1", "theirs-2"]


async def test_closing_waits_for_what_is_on_its_way() -> None:
    owner = ours()
    client = client_of(owner)
    await client.open()
    await client.enqueue("jobs/a", 0)
    pending = asyncio.create_task(client.enqueue("jobs/a", 1))
    await asyncio.sleep(0)

    await client.aclose()

    assert await pending
    with pytest.raises(RuntimeError, match="not open"):
        await client.enqueue("jobs/a", 1)
