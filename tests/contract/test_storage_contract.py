"""What every store promises (istos_worker.storage.protocol): the same suite over each of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import QueueMedium, Row, Storage, WriteBatch, open_storage
from istos_worker.storage.memory import MemoryStorage
from tests.fixtures.in_loop import StorageInLoop


class JsonPlugin:
    """As the peer's database plugins: values survive as JSON, or not at all."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def put(self, key: str, value: Any) -> None:
        self.values[key] = json.dumps(value)

    async def get(self, key: str) -> Any | None:
        found = self.values.get(key)
        return None if found is None else json.loads(found)

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Medium:
    """A place that is opened again and again, as by one owner after another."""

    def __init__(self, open_it: Callable[[], Storage]) -> None:
        self._open_it = open_it
        self._storage = open_it()

    async def queue(self, name: str = "jobs/email") -> QueueMedium:
        return await self._storage.open_queue(name)

    async def reopen(self) -> None:
        await self._storage.aclose()
        self._storage = self._open_it()

    async def aclose(self) -> None:
        await self._storage.aclose()


@pytest.fixture(params=["memory", "sqlite", "sqlite in the loop", "plugin"])
async def medium(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Medium]:
    match request.param:
        case "memory":
            storage = MemoryStorage()
            medium = Medium(lambda: storage)
        case "sqlite":
            medium = Medium(lambda: open_storage(f"sqlite:///{tmp_path}/folder/queues.db"))
        case "sqlite in the loop":
            medium = Medium(lambda: StorageInLoop(tmp_path / "folder" / "queues.db", writes_in_loop=True))
        case _:
            plugin = JsonPlugin()
            medium = Medium(lambda: open_storage(plugin))
    yield medium
    await medium.aclose()


def put(seq: int, body: bytes = b"{}", *, state: str = "ready") -> tuple[int, bytes, bytes | None]:
    return seq, head(seq, state), body


def change(seq: int, state: str) -> tuple[int, bytes, bytes | None]:
    return seq, head(seq, state), None


def head(seq: int, state: str) -> bytes:
    return json.dumps({"id": f"job-{seq}", "state": state}).encode()


async def read(queue: QueueMedium) -> list[Row]:
    return [row for chunk in [chunk async for chunk in queue.rows()] for row in chunk]


async def reread(medium: Medium, queue: QueueMedium) -> list[Row]:
    """What the next owner finds."""
    await queue.aclose()
    await medium.reopen()
    again = await medium.queue()
    await again.notes()
    return await read(again)


async def test_a_new_queue_is_empty(medium: Medium) -> None:
    queue = await medium.queue()

    assert await queue.notes() == {}
    assert await read(queue) == []


async def test_the_next_owner_sees_everything_in_order_of_sequence(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(7, b"seven"), put(3, b"three")], notes={"fence": b"41"}))
    await queue.commit(WriteBatch(rows=[put(1005, b"far")]))

    rows = await reread(medium, queue)

    assert rows == [
        Row(3, head(3, "ready"), b"three"),
        Row(7, head(7, "ready"), b"seven"),
        Row(1005, head(1005, "ready"), b"far"),
    ]


async def test_a_changed_head_keeps_its_body(medium: Medium) -> None:
    long = bytes(range(256)) * 40
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(1, b"short"), put(2, long)]))

    await queue.commit(WriteBatch(rows=[change(1, "leased"), change(2, "leased")]))

    assert await reread(medium, queue) == [
        Row(1, head(1, "leased"), b"short"),
        Row(2, head(2, "leased"), long),
    ]


async def test_a_row_may_be_put_and_changed_in_one_batch(medium: Medium) -> None:
    queue = await medium.queue()

    await queue.commit(WriteBatch(rows=[put(1, b"x"), change(1, "leased")]))

    assert await reread(medium, queue) == [Row(1, head(1, "leased"), b"x")]


async def test_a_row_put_and_forgotten_in_one_batch_is_gone(medium: Medium) -> None:
    queue = await medium.queue()

    await queue.commit(WriteBatch(rows=[put(1), put(2)], forgotten=[1]))

    assert [row.seq for row in await reread(medium, queue)] == [2]


async def test_a_row_put_again_has_its_new_body_only(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(1, b"long" * 1000), put(2, b"short")]))

    await queue.commit(WriteBatch(rows=[put(1, b"short"), put(2, b"long" * 1000)]))

    rows = await reread(medium, queue)
    assert [row.body for row in rows] == [b"short", b"long" * 1000]


async def test_changing_a_row_that_is_not_there_does_nothing(medium: Medium) -> None:
    queue = await medium.queue()

    await queue.commit(WriteBatch(rows=[change(9, "leased")]))

    assert await reread(medium, queue) == []


async def test_forgotten_rows_are_gone_and_unknown_ones_are_no_error(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(seq, b"b" * (seq * 1500)) for seq in range(4)]))

    await queue.commit(WriteBatch(forgotten=[1, 2, 2, 77, 10**12]))
    await queue.commit(WriteBatch(forgotten=[1]))

    assert [(row.seq, len(row.body)) for row in await reread(medium, queue)] == [(0, 0), (3, 4500)]


@pytest.mark.parametrize("size", [0, 1, 2048, 2049, 3_000_000])
async def test_bodies_of_any_size_and_any_bytes_come_back(medium: Medium, size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    queue = await medium.queue()

    await queue.commit(WriteBatch(rows=[put(1, body), put(2, b"\x00"), put(3, "žluť".encode())]))

    rows = await reread(medium, queue)
    assert [row.body for row in rows] == [body, b"\x00", "žluť".encode()]


async def test_notes_are_put_replaced_and_deleted(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(notes={"fence": b"1", "tick/nightly": b"\xff\x00", "gone": b"x"}))
    await queue.commit(WriteBatch(notes={"fence": b"2", "gone": None, "never": None, "leer/空": b""}))
    await queue.aclose()
    await medium.reopen()

    again = await medium.queue()

    assert await again.notes() == {"fence": b"2", "tick/nightly": b"\xff\x00", "leer/空": b""}


async def test_hundreds_of_notes_come_and_go(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(notes={f"out/{n}": b"%d" % n for n in range(300)}))
    await queue.commit(WriteBatch(notes={f"out/{n}": None for n in range(0, 300, 2)}))
    await queue.commit(WriteBatch(notes={f"late/{n}": b"" for n in range(20)}))
    await queue.aclose()
    await medium.reopen()

    notes = await (await medium.queue()).notes()

    assert notes == {f"out/{n}": b"%d" % n for n in range(1, 300, 2)} | {f"late/{n}": b"" for n in range(20)}


async def test_an_empty_batch_is_nothing(medium: Medium) -> None:
    queue = await medium.queue()

    await queue.commit(WriteBatch())

    assert await read(queue) == []


async def test_ten_thousand_rows_in_one_batch(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(seq, b"%d" % seq) for seq in range(10_000)]))
    await queue.commit(
        WriteBatch(
            rows=[change(seq, "done") for seq in range(0, 10_000, 2)],
            forgotten=[seq for seq in range(10_000) if seq % 10],
        )
    )

    rows = await reread(medium, queue)

    assert rows == [Row(seq, head(seq, "done"), b"%d" % seq) for seq in range(0, 10_000, 10)]


async def test_a_queue_that_has_moved_on_is_as_good_as_new(medium: Medium) -> None:
    queue = await medium.queue()
    for start in range(0, 6000, 500):
        await queue.commit(WriteBatch(rows=[put(seq) for seq in range(start, start + 500)]))
        await queue.commit(WriteBatch(forgotten=[s for s in range(start, start + 500) if s != 1234]))

    assert [row.seq for row in await reread(medium, queue)] == [1234]


async def test_numbering_may_begin_again_in_an_emptied_queue(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(seq) for seq in range(2500)]))
    await queue.commit(WriteBatch(forgotten=list(range(2500))))

    await queue.commit(WriteBatch(rows=[put(1), put(1500)]))

    assert [row.seq for row in await reread(medium, queue)] == [1, 1500]


async def test_two_queues_of_one_medium_do_not_see_each_other(medium: Medium) -> None:
    names = ["jobs/email", "jobs/žluťoučký kůň/空", "jobs_email", "x'; DROP TABLE queues; --"]
    queues = [await medium.queue(name) for name in names]
    for number, queue in enumerate(queues):
        await queue.commit(
            WriteBatch(rows=[put(1, b"%d" % number), put(10 + number)], notes={"n": b"%d" % number})
        )
    await queues[0].commit(WriteBatch(forgotten=[1]))
    await medium.reopen()

    again = {name: await medium.queue(name) for name in reversed(names)}

    for number, name in enumerate(names):
        assert await again[name].notes() == {"n": b"%d" % number}
        expected = [10 + number] if number == 0 else [1, 10 + number]
        assert [row.seq for row in await read(again[name])] == expected


async def test_a_queue_has_one_owner_at_a_time(medium: Medium) -> None:
    queue = await medium.queue()
    with pytest.raises(StorageUnavailableError, match=r"jobs/email.*already has an owner"):
        await medium.queue()
    await queue.aclose()

    again = await medium.queue()

    assert await read(again) == []


async def test_closing_is_idempotent_and_final(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.aclose()
    await queue.aclose()

    with pytest.raises(StorageUnavailableError, match="closed"):
        await queue.commit(WriteBatch(rows=[put(1)]))

    await medium.aclose()
    await medium.aclose()


async def test_reading_again_in_a_running_owner_gives_what_is_committed(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(1), put(2)], notes={"a": b"1"}))
    assert await queue.notes() == {"a": b"1"}
    assert [row.seq for row in await read(queue)] == [1, 2]

    await queue.commit(WriteBatch(rows=[put(3)], forgotten=[1]))

    assert await queue.notes() == {"a": b"1"}
    assert [row.seq for row in await read(queue)] == [2, 3]


async def test_a_reader_that_stops_early_is_in_nobodys_way(medium: Medium) -> None:
    queue = await medium.queue()
    await queue.commit(WriteBatch(rows=[put(seq, b"x" * 1000) for seq in range(3000)]))
    async for chunk in queue.rows():
        assert chunk
        break

    await queue.commit(WriteBatch(forgotten=list(range(2999))))

    assert [row.seq for row in await reread(medium, queue)] == [2999]
