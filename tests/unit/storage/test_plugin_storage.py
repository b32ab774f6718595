"""A store over put, get, delete: bounded work per job, and a crash between any two calls."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import WriteBatch
from istos_worker.storage.plugin import PluginQueue, PluginStorage

HEAD = b'{"state":"ready"}'


class Plugin:
    """Counts calls; after `calls_left` of them every call fails, as a database that went away."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.puts: list[str] = []
        self.calls = 0
        self.calls_left: int | None = None

    async def put(self, key: str, value: Any) -> None:
        self._count()
        self.puts.append(key)
        self.values[key] = value

    async def get(self, key: str) -> Any | None:
        self._count()
        return self.values.get(key)

    async def delete(self, key: str) -> None:
        self._count()
        self.values.pop(key, None)

    def _count(self) -> None:
        self.calls += 1
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise ConnectionError("server went away")
            self.calls_left -= 1


async def open_queue(plugin: Plugin) -> PluginQueue:
    queue = await PluginStorage(plugin).open_queue("jobs/email")
    await queue.notes()
    await seqs(queue)
    return queue


async def seqs(queue: PluginQueue) -> list[int]:
    return [row.seq async for chunk in queue.rows() for row in chunk]


def put(*numbers: int) -> WriteBatch:
    return WriteBatch(rows=[(seq, HEAD, b"body") for seq in numbers])


async def test_a_job_costs_the_same_few_calls_however_many_are_held() -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)
    costs = []
    for start in (0, 20_000, 40_000):
        before = plugin.calls
        for seq in range(start, start + 2000):
            await queue.commit(put(seq))
            await queue.commit(WriteBatch(rows=[(seq, HEAD, None)]))
            if seq % 2:
                await queue.commit(WriteBatch(forgotten=[seq]))
        costs.append((plugin.calls - before) / 2000)
        await queue.commit(put(*range(start + 2000, start + 20_000)))

    assert all(4.0 <= cost < 4.1 for cost in costs)  # 2 to put, 1 to change, 2 to forget every other


async def test_no_value_grows_with_the_number_of_jobs() -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)

    await queue.commit(put(*range(10_000)))

    assert len(plugin.values) == 20_001
    assert max(len(str(value)) for value in plugin.values.values()) < 100


async def test_what_a_queue_leaves_behind_stays_small() -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)
    for start in range(0, 30_000, 1000):
        await queue.commit(put(*range(start, start + 1000)))
        await queue.commit(WriteBatch(forgotten=list(range(start, start + 1000))))

    assert len(plugin.values) < 5
    before = plugin.calls
    assert await seqs(await open_queue(plugin)) == []
    assert plugin.calls - before < 2100


async def test_one_old_dead_letter_does_not_make_the_load_long() -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)
    for start in range(0, 30_000, 1000):
        await queue.commit(put(*range(start, start + 1000)))
        await queue.commit(WriteBatch(forgotten=[s for s in range(start, start + 1000) if s != 7]))
    before = plugin.calls

    assert await seqs(await open_queue(plugin)) == [7]

    assert plugin.calls - before < 2200


async def test_a_plugins_failure_is_told_and_the_next_commit_works() -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)
    plugin.calls_left = 0

    with pytest.raises(
        StorageUnavailableError, match="storage plugin Plugin: ConnectionError: server went away"
    ):
        await queue.commit(put(1))

    plugin.calls_left = None
    await queue.commit(put(2))
    assert await seqs(queue) == [2]


@pytest.mark.parametrize("calls", range(40))
async def test_a_crash_between_any_two_calls_loses_nothing_acknowledged(calls: int) -> None:
    plugin = Plugin()
    queue = await open_queue(plugin)
    await queue.commit(put(*range(990, 1000)))
    await queue.commit(WriteBatch(notes={"old": b"1"}))
    done = WriteBatch(
        rows=[(1000, HEAD, b"next step"), (991, b'{"state":"leased"}', None)],
        forgotten=[990],
        notes={"out/1": b"to another queue", "old": None},
    )

    plugin.calls_left = calls
    with contextlib.suppress(StorageUnavailableError):
        await queue.commit(done)
    plugin.calls_left = None

    again = await PluginStorage(plugin).open_queue("jobs/email")
    notes = await again.notes()
    found = await seqs(again)
    assert set(range(991, 1000)) <= set(found)
    assert 990 in found or (1000 in found and "out/1" in notes)
    assert "old" in notes or 990 not in found
    await again.commit(WriteBatch(rows=[*done.rows], forgotten=[990], notes=done.notes))
    assert await seqs(again) == list(range(991, 1001))
    assert await again.notes() == {"out/1": b"to another queue"}
