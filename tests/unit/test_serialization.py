from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections import namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istos.messages.serialization import JsonSerializer as PeerJson

from istos_worker.serialization import JsonSerializer, RawSerializer, Serializer

json_serializer = JsonSerializer()
there_and_back: list[Any] = [
    None,
    True,
    "text with ünïcode \u2028",
    {"a": [1, 2.5, None, {"b": "c"}]},
    2**63 - 1,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    {"deep": [10**40, {"and": -(10**25)}]},
    [],
    {},
    {"nothing": None, "number": 1.5},
]


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None
    _hidden: int = 7


class Colour(enum.Enum):
    RED = "red"


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize("value", there_and_back, ids=repr)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    assert json_serializer.deserialize(json_serializer.serialize(value)) == value


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (Point(1, [Point(2)]), {"x": 1, "y": [{"x": 2, "y": None}]}),
        (datetime(2026, 11, 29, 19, tzinfo=UTC), "2026-11-29T19:00:00+00:00"),
        (date(2026, 11, 29), "2026-11-29"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Colour.RED, "red"),
        (Decimal("0.10"), "0.10"),
        (Path("/tmp/x"), "/tmp/x"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset("ba"), ["a", "b"]),
        ((1, (2,)), [1, [2]]),
        (Pair(1, {2}), [1, [2]]),
        ({1: "a", None: "b", 2.5: "c"}, {"1": "a", "null": "b", "2.5": "c"}),
        ({True: "d"}, {"true": "d"}),
        ({Colour.RED: 1, uuid.UUID(int=5): 2}, {"red": 1, "00000000-0000-0000-0000-000000000005": 2}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, frozenset) else repr(value),
)
@pytest.mark.parametrize("beside", [0, 2**70], ids=["fast", "beside a big integer"])
def test_other_types_are_carried_by_the_stated_rules(value: Any, carried: Any, beside: int) -> None:
    raw = json_serializer.serialize({"value": value, "beside": beside})

    assert json.loads(raw) == {"value": carried, "beside": beside}


def test_a_set_whose_members_cannot_be_sorted_is_an_array_all_the_same() -> None:
    raw = json_serializer.serialize({1, "a"})

    assert set(json.loads(raw)) == {1, "a"}


def test_a_pydantic_model_is_carried_as_it_dumps_itself() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", when=(datetime, ...), tags=(set[str], ...))
    value = model(when=datetime(2026, 1, 1, tzinfo=UTC), tags={"a"})

    assert json.loads(json_serializer.serialize([value])) == [{"when": "2026-01-01T00:00:00Z", "tags": ["a"]}]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "$ is NaN"),
        ({"items": [1, 2, 3, {"price": math.nan}]}, "$.items[3].price is NaN"),
        ({"a b": math.inf}, "$['a b'] is Infinity"),
        ([-math.inf], "$[0] is -Infinity"),
        (Point(1, math.nan), "$.y is NaN"),
        ({math.nan: 1}, "$ has the key NaN"),
        (
            {"photo": b"\x00"},
            "$.photo is bytes, which JSON cannot carry: encode it (base64), or use RawSerializer",
        ),
        ({"big": 2**70, "raw": bytearray(1)}, "$.raw is bytearray"),
        ({"f": {"g": print}}, "$.f.g is builtin_function_or_method, which JSON cannot carry"),
        ({(1, 2): 3}, "$ has a key of type tuple"),
        ({"name": "\ud800"}, "$.name is text that is not valid Unicode"),
        ([object()], "$[0] is object, which JSON cannot carry"),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_what_json_cannot_carry_is_refused_with_the_path_to_it(value: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        json_serializer.serialize(value)

    assert said in str(refused.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ValueError, match="nested too deep, or contains itself"):
        json_serializer.serialize(loop)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b"nul", b'{"a":1}x', b"[" * 100_000, b'"1234567890123456789012'], ids=repr
)
def test_what_is_not_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        json_serializer.deserialize(raw)


def test_a_peers_nan_is_accepted() -> None:
    read = json_serializer.deserialize(PeerJson().serialize({"a": math.nan, "b": math.inf}))

    assert math.isnan(read["a"])
    assert read["b"] == math.inf


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_peer_and_ours_read_each_other(value: Any) -> None:
    assert json_serializer.deserialize(PeerJson().serialize(value)) == value
    assert PeerJson().deserialize(json_serializer.serialize(value)) == value


@pytest.mark.parametrize(
    ("value", "carried"),
    [(b"\x00", b"\x00"), (bytearray(b"a"), b"a"), (memoryview(b"b"), b"b"), ("ü", "ü".encode())],
)
def test_raw_bytes_are_carried_as_they_are(value: Any, carried: bytes) -> None:
    raw = RawSerializer()

    assert raw.deserialize(raw.serialize(value)) == carried


def test_raw_refuses_what_is_not_bytes() -> None:
    with pytest.raises(TypeError, match="takes bytes or str, got dict"):
        RawSerializer().serialize({})


def test_the_peers_serializers_are_serializers_here() -> None:
    assert isinstance(PeerJson(), Serializer)
