"""Parameters, replies, envelopes, keys: what is sent is what is read, and nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istos.context import RequestEnvelope
from istos.http.gateway import build_selector
from istos.http.gateway import decode_params as peer_decode

from istos_worker.errors import BadRequestError, ConflictError, IstosError, OwnerUnreachable
from istos_worker.wire.codec import (
    decode_params,
    decode_reply,
    encode_error,
    encode_params,
    encode_reply,
    flag_param,
    int_param,
    seconds_param,
)
from istos_worker.wire.envelope import Envelope, decode_envelope
from istos_worker.wire.keys import queue_prefix

names = st.text(min_size=1, max_size=8)
values = st.text(max_size=12)
tokens = st.none() | st.text(min_size=1, max_size=20).filter(lambda text: not text.lstrip().startswith("{"))
correlation_ids = st.none() | st.from_regex(r"[a-zA-Z0-9-]{1,40}", fullmatch=True)


@given(st.dictionaries(names, values, max_size=8))
def test_parameters_survive_the_trip(params: dict[str, str]) -> None:
    assert decode_params(encode_params(params)) == params


@given(st.dictionaries(names, values, max_size=8))
def test_parameters_are_the_peers(params: dict[str, str]) -> None:
    selector = build_selector("jobs/a/enqueue", params)
    sent = selector.partition("?")[2]

    assert sent == encode_params(params)
    pairs = dict(pair.partition("=")[::2] for pair in sent.split(";")) if sent else {}
    assert peer_decode(pairs) == decode_params(sent)


@given(token=tokens, correlation_id=correlation_ids)
def test_envelopes_are_the_peers(token: str | None, correlation_id: str | None) -> None:
    ours = Envelope(token=token, correlation_id=correlation_id)
    peers = RequestEnvelope(token=token, correlation_id=correlation_id)

    assert decode_envelope(peers.to_attachment()) == ours
    assert RequestEnvelope.from_attachment(ours.encode()) == peers


@given(st.binary(max_size=80))
def test_an_attachment_never_raises(raw: bytes) -> None:
    decode_envelope(raw)


def test_unsafe_ids_and_traces_are_dropped() -> None:
    read = decode_envelope(b'{"tok": 7, "cid": "a\\nb", "tp": "00-zz"}')

    assert read == Envelope()


@pytest.mark.parametrize("text", ["x", "1.5", "", "9" * 30, "-1", "11"])
def test_a_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="n must be"):
        int_param({"n": text}, "n", 1, low=0, high=10)


@pytest.mark.parametrize("text", ["x", "nan", "inf", "-0.1", "1e9", ""])
def test_seconds_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="wait must be"):
        seconds_param({"wait": text}, "wait", 0, high=100)


def test_absent_values_have_defaults() -> None:
    assert int_param({}, "n", 3, low=0, high=10) == 3
    assert seconds_param({}, "wait", 1.5, high=10) == 1.5
    assert [flag_param({"all": text}, "all") for text in ("1", "true", "0", "")] == [True, True, False, False]


def test_an_error_is_raised_where_it_arrives() -> None:
    sent = encode_error(ConflictError("taken", details={"by": object()}, correlation_id="c"))

    with pytest.raises(ConflictError, match="taken") as told:
        decode_reply(sent)

    assert (told.value.code, told.value.correlation_id, told.value.status) == ("conflict", "c", 409)
    assert OwnerUnreachable("x").status == 504


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"7"])
def test_a_reply_that_is_none_is_an_error(raw: bytes) -> None:
    with pytest.raises(IstosError):
        decode_reply(raw)
    assert decode_reply(encode_reply({"ok": True})) == {"ok": True}


@pytest.mark.parametrize("prefix", ["", "/", "a//b", "a*", "a/$x", "a?b", "a b", "_a", "a/@b", "x" * 201])
def test_a_queue_name_that_is_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(BadRequestError, match="not valid"):
        queue_prefix(prefix)
    assert queue_prefix("/jobs/email/") == "jobs/email"
