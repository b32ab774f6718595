"""What is particular to the SQLite store: one file that an operator can read, one statement per batch."""

# ruff: noqa: ASYNC240 - sizes of files are what is tested, and nothing else runs in these loops

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import WriteBatch, sqlite_writer
from istos_worker.storage.sqlite import SQLiteStorage
from istos_worker.storage.sqlite_file import SQLiteFile
from istos_worker.storage.sqlite_schema import (
    LINES_PER_STATEMENT,
    LOG_BYTES,
    batch_lines,
    batch_statements,
    statements,
)

Prepared = Callable[[WriteBatch], Iterable[tuple[str, list[object]]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queues.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = SQLiteStorage(path)
    yield storage
    await storage.aclose()


def rows(*seqs: int, body: bytes = b'{"to": "a@b.c"}') -> WriteBatch:
    return WriteBatch(rows=[(seq, b'{"id": "job-%d", "state": "ready"}' % seq, body) for seq in seqs])


async def test_an_operator_reads_the_queues_with_the_sqlite_shell_while_the_owner_runs(
    storage: SQLiteStorage, path: Path
) -> None:
    queue = await storage.open_queue("jobs/email")
    await queue.commit(rows(1, 2))

    with contextlib.closing(sqlite3.connect(path)) as shell:
        number = shell.execute("SELECT number FROM queues WHERE name = 'jobs/email'").fetchone()[0]
        found = shell.execute(
            f"SELECT json_extract(head, '$.id'), json_extract(CAST(body AS TEXT), '$.to') FROM jobs_{number}"
        ).fetchall()

    assert found == [("job-1", "a@b.c"), ("job-2", "a@b.c")]


async def test_an_operator_who_deletes_a_row_deletes_its_long_body(
    storage: SQLiteStorage, path: Path
) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1, 2, body=b"x" * 100_000))

    with contextlib.closing(sqlite3.connect(path)) as shell:
        shell.execute("DELETE FROM jobs_1 WHERE seq = 1")
        shell.commit()
        assert shell.execute("SELECT seq FROM bodies_1").fetchall() == [(2,)]


async def test_no_long_body_outlives_its_row(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1, 2, 3, body=b"x" * 5000))

    await queue.commit(rows(1, body=b"short now"))
    await queue.commit(WriteBatch(forgotten=[2]))

    with contextlib.closing(sqlite3.connect(path)) as shell:
        assert shell.execute("SELECT seq FROM bodies_1").fetchall() == [(3,)]


async def test_a_changed_head_does_not_rewrite_a_long_body(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1, body=b"x" * 5_000_000))
    await storage.aclose()
    queue = await storage.open_queue("q")

    await queue.commit(WriteBatch(rows=[(1, b"{}", None)]))

    assert path.with_name("queues.db-wal").stat().st_size < LOG_BYTES + 50_000 < 5_000_000


async def test_the_log_has_its_blocks_before_the_first_job(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    laid_out = path.with_name("queues.db-wal").stat().st_size

    for seq in range(1, 100):
        await queue.commit(rows(seq))

    assert path.with_name("queues.db-wal").stat().st_size == laid_out == LOG_BYTES


async def test_the_log_does_not_grow_without_bound(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    for start in range(0, 60_000, 1000):
        await queue.commit(rows(*range(start, start + 1000)))
        await queue.commit(WriteBatch(forgotten=list(range(start, start + 1000))))

    assert path.with_name("queues.db-wal").stat().st_size < 8_000_000
    assert path.stat().st_size < 2_000_000


async def test_any_number_of_queues_of_a_file_share_one_thread_which_ends_with_them(
    storage: SQLiteStorage, path: Path
) -> None:
    def threads() -> int:
        return sum(thread.name == "sqlite queues.db" for thread in threading.enumerate())

    other = SQLiteStorage(path)
    queues = [await storage.open_queue("a"), await storage.open_queue("b"), await other.open_queue("c")]
    await asyncio.gather(*(queue.commit(rows(1)) for queue in queues))
    assert threads() == 1

    (thread,) = (thread for thread in threading.enumerate() if thread.name == "sqlite queues.db")
    await storage.aclose()
    await queues[2].commit(rows(2))
    await other.aclose()
    await asyncio.to_thread(thread.join)

    assert threads() == 0
    assert not path.with_name("queues.db-wal").exists()


async def test_an_event_loop_that_may_wait_leaves_a_slow_medium_to_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SQLiteStorage(path, writes_in_loop=True)
    queue = await storage.open_queue("a")
    monkeypatch.setattr(sqlite_writer, "QUICK_S", 60.0)
    assert queue.commit_now(rows(1))

    monkeypatch.setattr(sqlite_writer, "QUICK_S", 0.0)
    assert [queue.commit_now(rows(seq)) for seq in (2, 3, 4)] == [True, True, False]
    await queue.commit(rows(5))

    assert [row.seq async for chunk in queue.rows() for row in chunk] == [1, 2, 3, 5]
    await storage.aclose()


async def test_one_slow_write_among_quick_ones_stays_in_the_event_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite moves its log into the file now and then."""
    storage = SQLiteStorage(path, writes_in_loop=True)
    queue = await storage.open_queue("a")
    now, took_s = 100.0, 0.0

    def monotonic() -> float:
        nonlocal now
        now += took_s
        return now

    monkeypatch.setattr(sqlite_writer, "time", SimpleNamespace(monotonic=monotonic))

    for seq, each_s in enumerate((0.010, 0.0001, 1.0, 0.0001, 0.010, 0.010), start=1):
        took_s = each_s
        assert queue.commit_now(rows(seq))

    assert not queue.commit_now(rows(7))
    await storage.aclose()


async def test_a_failure_in_the_event_loop_is_told_and_leaves_the_next_batch_to_the_thread(
    path: Path,
) -> None:
    storage = SQLiteStorage(path, busy_timeout_s=0.01, writes_in_loop=True)
    queue = await storage.open_queue("a")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")

        with pytest.raises(StorageUnavailableError, match="locked by another process"):
            queue.commit_now(rows(1))

        assert not queue.commit_now(rows(1))
    await queue.commit(rows(1))
    assert [row.seq async for chunk in queue.rows() for row in chunk] == [1]
    await storage.aclose()


async def test_a_storage_that_was_not_told_so_never_holds_up_the_event_loop(storage: SQLiteStorage) -> None:
    queue = await storage.open_queue("a")

    assert not queue.commit_now(rows(1))


async def test_a_forgotten_queue_is_released_with_the_garbage(storage: SQLiteStorage) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))
    del queue
    gc.collect()

    again = await storage.open_queue("q")

    assert [row.seq async for chunk in again.rows() for row in chunk] == [1]


def test_batches_of_several_queues_are_one_transaction(path: Path) -> None:
    file = SQLiteFile(str(path), busy_timeout_s=1)
    file.open_queue("a")
    file.open_queue("b")
    bad = WriteBatch(rows=[(2**70, b"{}", b"")])

    with pytest.raises(OverflowError):
        file.write([("a", rows(1)), ("b", bad)])
    file.write([("a", rows(2)), ("b", rows(3))])

    with contextlib.closing(sqlite3.connect(path)) as shell:
        assert shell.execute("SELECT seq FROM jobs_1 UNION ALL SELECT seq FROM jobs_2").fetchall() == [
            (2,),
            (3,),
        ]
    file.close()


@pytest.mark.parametrize("count", [1, 5, 100, LINES_PER_STATEMENT])
def test_a_batch_is_one_statement(count: int) -> None:
    batch = rows(*range(count - 1))
    batch.notes["fence"] = b"1"

    (statement,) = statements(1, batch_lines(batch))

    assert len(statement[1]) // 4 < count * 1.5 + 1


@pytest.mark.parametrize("count", [1, 5, 100, LINES_PER_STATEMENT])
def test_new_rows_alone_are_one_statement_without_the_view(count: int) -> None:
    ((sql, values),) = batch_statements(1, rows(*range(count)))

    assert "INTO jobs_1 " in sql
    assert len(values) // 3 < count * 1.5 + 1


@pytest.mark.parametrize(
    "prepared", [lambda batch: statements(1, batch_lines(batch)), partial(batch_statements, 1)]
)
def test_batches_of_all_sizes_share_few_statements(prepared: Prepared) -> None:
    texts = {sql for count in range(1, 2500, 7) for sql, _ in prepared(rows(*range(count)))}

    assert len(texts) <= 20
