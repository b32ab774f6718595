"""Random and malformed queries over all verbs: each one is answered, and the owner serves on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from istos_worker.errors import BadRequestError, IstosError
from istos_worker.queue.records import Instant, QueueSettings
from istos_worker.queue.state import QueueState
from istos_worker.queue.verbs import VERB_RUNS, Call
from istos_worker.wire.codec import MAX_PARAMETERS, decode_params
from istos_worker.wire.limits import Limits
from tests.fixtures.live import Live, Raw, live_node
from tests.fixtures.noise import PARAMETERS

ROUNDS = 3000
AT_ONCE = 100
VALUES = (
    "0",
    "1",
    "-1",
    "2",
    "1000",
    "1e3",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "99999999999999999999",
    "0x10",
    "true",
    "null",
    "%00",
    "%ff",
    "%F0%9F%92%A9",
    "a",
    "b.c",
    "*",
    "?",
    "$",
    "%3B%3D",
    "e30=",
    "eyJjaGFpbiI6W119",
    "eyJjaG9yZCI6MX0=",
    "W10=",
    "../..",
    "9223372036854775807",
)
PAYLOADS: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b"[1,2,3]",
    b'["MQ==", "%%", 3]',
    b'{"bodies": ["MQ=="], "wfs": [null]}',
    b'{"bodies": ["MQ=="], "wfs": [7]}',
    b'{"outcomes": [{"verb": "ack", "job_id": "a", "fence": -1}]}',
    b'{"outcomes": [{"verb": "nack", "job_id": "a", "error": "\\ud800", "retry_after": 1e400}]}',
    b'{"outcomes": [{"verb": "ack", "job_id": "a", "result": "!"}]}',
    b'{"outcomes": [{"verb": "release", "job_id": "a", "delay": true}]}',
    b'{"jobs": [{"job_id": "a", "fence": 1}, {}]}',
    b'{"running": ["a", 1]}',
    b"[" * 5000,
    b'{"task": "t", "args": [], "kwargs": {}}',
    b"9" * 5000,
)
ATTACHMENTS: tuple[bytes | None, ...] = (
    None,
    b"",
    b"token",
    b"\xff",
    b"{",
    b'{"tok": 1, "cid": [], "tp": {}}',
    b'{"tok": "t", "cid": "a\\nb", "tp": "00-0-0-00"}',
    b'{"cid": "' + b"x" * 5000 + b'"}',
)


@pytest.fixture
async def node(way: str) -> AsyncIterator[Live]:
    async with live_node() as live:
        await live.own(keep_results=True, retry_backoff_s=0.0)
        yield live


def random_params(random_: random.Random) -> str:
    pairs = [
        f"{random_.choice(PARAMETERS)}={random_.choice(VALUES)}"
        for _ in range(random_.choice((0, 1, 1, 2, 3, 5, 33)))
    ]
    if random_.random() < 0.1:
        pairs.append(random_.choice(("=", "=x", "job_id", ";;", "a=b=c", "wait=0.001")))
    return ";".join(pairs)


async def test_every_query_is_answered_and_the_owner_serves_on(node: Live) -> None:
    random_ = random.Random(7)
    session = await node.connect()
    await session.ask("jobs/a/info")
    raw = Raw(session)

    async def one(verb: str, params: str) -> None:
        answer = await session.ask(
            f"jobs/a/{verb}",
            params,
            payload=random_.choice(PAYLOADS),
            attachment=random_.choice(ATTACHMENTS),
            timeout_s=40,
        )
        assert answer is not None, f"{verb}?{params} was not answered"
        reply = orjson.loads(answer)
        assert isinstance(reply, dict)
        assert reply.get("code") != "internal_error", f"{verb}?{params}: {reply}"

    for _ in range(ROUNDS // AT_ONCE):
        asked = [(random_.choice(sorted(VERB_RUNS)), random_params(random_)) for _ in range(AT_ONCE)]
        # One that is held is no trouble, but its time would be this test's.
        await asyncio.gather(*(one(verb, params.replace("wait=", "wait=0.0")) for verb, params in asked))

    await raw("resume")
    await raw.enqueue(b'"healthy"', priority=2**30, job_id="last")
    job = await raw("claim")
    assert job["job_id"] == "last"
    assert await raw("ack", job_id="last", fence=job["fence"]) == {"ok": True}


class Recorded:
    """A query that remembers its answers."""

    def __init__(self, payload: bytes, attachment: bytes | None) -> None:
        self.payload = payload
        self.attachment = attachment
        self.local_name: str | None = None
        self.answers: list[bytes] = []

    def reply(self, payload: bytes, /) -> None:
        self.answers.append(payload)

    def drop(self) -> None:
        self.answers.append(b"")


texts = st.text(max_size=30) | st.sampled_from(VALUES)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
outcome_like = st.dictionaries(
    st.sampled_from(
        ("verb", "job_id", "attempt", "fence", "result", "error", "delay", "retry_after", "discard")
    ),
    json_values | st.sampled_from(("ack", "nack", "release", "cancelled")),
    max_size=6,
)
payloads = (
    st.binary(max_size=60)
    | json_values.map(
        lambda value: (
            orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS) if _fits(value) else b"0"
        )
    )
    | st.lists(outcome_like, max_size=3).map(
        lambda listed: orjson.dumps({"outcomes": listed, "jobs": listed}) if _fits(listed) else b"1"
    )
)


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return False
    return True


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(sorted(VERB_RUNS)),
            st.dictionaries(st.sampled_from(PARAMETERS), texts, max_size=6),
            payloads,
            st.none() | st.binary(max_size=40),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_call_ends_in_a_reply_an_error_or_a_wait(
    calls: list[tuple[str, dict[str, str], bytes, bytes | None]],
) -> None:
    state = QueueState(QueueSettings(prefix="jobs/a"))
    state.loaded(Instant(1000.0, 1000.0))

    for step, (verb, params, payload, attachment) in enumerate(calls):
        query = Recorded(payload, attachment)
        parked: set[Call] = set()
        call = Call(verb, query, params, Limits(), parked)
        refusal: IstosError | None = None
        try:
            call.apply(state, Instant(1000.0 + step, 1000.0 + step))
        except IstosError as error:
            refusal = error
            call.failed(error)
        else:
            call.done()
        assert refusal is None or refusal.code != "internal_error"
        assert len(query.answers) == 1 or call in parked


@given(st.text(max_size=60) | st.text(alphabet="a=;%2", max_size=80))
def test_parameters_are_read_or_refused(text: str) -> None:
    if text.count(";") >= MAX_PARAMETERS:
        with pytest.raises(BadRequestError):
            decode_params(text)
    else:
        assert "" not in decode_params(text)
