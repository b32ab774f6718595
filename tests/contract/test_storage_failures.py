"""When the medium fails: the file and the reason in plain words, nothing half written, and well again with it."""

# ruff: noqa: ASYNC240 - the tests break files on purpose, and nothing else runs in their loops

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import QueueMedium, WriteBatch
from istos_worker.storage.sqlite import SQLiteStorage
from tests.fixtures.in_loop import StorageInLoop

HEAD = b'{"state":"ready"}'
NOBODY = 65534


def rows(*seqs: int, size: int = 10) -> WriteBatch:
    return WriteBatch(rows=[(seq, HEAD, b"x" * size) for seq in seqs])


async def stored(queue: QueueMedium) -> list[int]:
    await queue.notes()
    return [row.seq async for chunk in queue.rows() for row in chunk]


async def fill(queue: QueueMedium, kept: list[int]) -> None:
    """Commits for ever; `kept` is what was acknowledged."""
    for start in itertools.count(0, 10):
        await queue.commit(rows(*range(start, start + 10), size=1500))
        kept += range(start, start + 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queues.db"


@pytest.fixture(params=[False, True], ids=["by the thread", "in the loop"])
async def storage(path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SQLiteStorage]:
    kind = StorageInLoop if request.param else SQLiteStorage
    storage = kind(path, busy_timeout_s=0.05, writes_in_loop=request.param)
    yield storage
    await storage.aclose()


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond it (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach, unlike pytest's own; acts as that user when run as root."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if is_root:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o700)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_refuses_whole_batches_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 600_000)
    storage = SQLiteStorage(small_disk / "queues.db")
    queue = await storage.open_queue("q")
    kept: list[int] = []
    with pytest.raises(StorageUnavailableError, match=r"disk/queues\.db: the disk is full"):
        await fill(queue, kept)

    assert kept
    assert await stored(queue) == kept
    ballast.unlink()
    await queue.commit(rows(20_000, size=1500))

    assert await stored(queue) == [*kept, 20_000]
    await storage.aclose()


async def test_a_limit_on_the_file_is_told_and_overcome(storage: SQLiteStorage) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))

    with (
        files_no_larger_than(300_000),
        pytest.raises(StorageUnavailableError, match=r"queues\.db: the disk (failed|is full)"),
    ):
        await queue.commit(rows(*range(2, 500), size=2000))

    assert await stored(queue) == [1]
    await queue.commit(rows(*range(2, 500), size=2000))
    assert await stored(queue) == list(range(1, 500))


async def test_a_lock_of_another_program_is_waited_for_then_told(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as operator:
        operator.execute("BEGIN IMMEDIATE")

        with pytest.raises(StorageUnavailableError, match=r"queues\.db: locked by another process"):
            await queue.commit(rows(2))
        with pytest.raises(StorageUnavailableError, match=r"queues\.db: locked by another process"):
            await queue.commit(rows(*range(3, 3000)))

        operator.execute("ROLLBACK")

    assert await stored(queue) == [1]
    await queue.commit(rows(2))
    assert await stored(queue) == [1, 2]


async def test_a_read_only_file_is_told_and_well_again_when_writable(open_folder: Path) -> None:
    path = open_folder / "queues.db"
    storage = SQLiteStorage(path)
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))
    await storage.aclose()
    path.chmod(0o444)

    with pytest.raises(StorageUnavailableError, match=r"queues\.db: .*read-only"):
        await storage.open_queue("q")

    path.chmod(0o644)
    queue = await storage.open_queue("q")
    assert await stored(queue) == [1]
    await storage.aclose()


async def test_a_read_only_folder_is_told(open_folder: Path) -> None:
    open_folder.chmod(0o555)

    with pytest.raises(StorageUnavailableError, match=r"queues\.db: Permission denied"):
        await SQLiteStorage(open_folder / "queues.db").open_queue("q")
    with pytest.raises(StorageUnavailableError, match=r"queues\.db: Permission denied"):
        await SQLiteStorage(open_folder / "below" / "queues.db").open_queue("q")


async def test_a_file_that_is_no_database_is_told_and_left_alone(storage: SQLiteStorage, path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)

    with pytest.raises(StorageUnavailableError, match=r"queues\.db: damaged, or no SQLite database"):
        await storage.open_queue("q")

    assert path.read_bytes() == b"Dear diary, " * 1000
    path.unlink()
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))
    assert await stored(queue) == [1]


async def test_damage_inside_the_file_is_told_when_it_is_read(storage: SQLiteStorage, path: Path) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(*range(2000), size=500))
    await storage.aclose()
    with path.open("r+b") as file:
        file.seek(100 * 4096)
        file.write(b"\xff" * 4096 * 50)

    queue = await storage.open_queue("q")

    with pytest.raises(StorageUnavailableError, match=r"queues\.db: damaged"):
        await stored(queue)


async def test_the_database_of_another_application_is_left_alone(storage: SQLiteStorage, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE queues (theirs)")

    with pytest.raises(StorageUnavailableError, match=r"queues\.db cannot be used.*another application"):
        await storage.open_queue("q")

    with contextlib.closing(sqlite3.connect(path)) as theirs:
        assert theirs.execute("PRAGMA journal_mode").fetchone() == ("delete",)


async def test_a_file_of_a_newer_version_is_refused(storage: SQLiteStorage, path: Path) -> None:
    medium = await storage.open_queue("q")
    await medium.aclose()  # a queue that was forgotten is closed too, but nobody can wait for that
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")

    with pytest.raises(StorageUnavailableError, match=r"schema version 99 is newer .*upgrade istos-worker"):
        await storage.open_queue("q")


async def test_missing_folders_are_made(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "a" / "b" / "queues.db")

    await storage.open_queue("q")

    assert (tmp_path / "a" / "b" / "queues.db").exists()
    await storage.aclose()


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageUnavailableError, match=r"file/queues\.db: "):
        await SQLiteStorage(tmp_path / "file" / "queues.db").open_queue("q")


async def test_a_path_that_is_a_folder_is_told(storage: SQLiteStorage, path: Path) -> None:
    path.mkdir()

    with pytest.raises(StorageUnavailableError, match=r"queues\.db: cannot be opened: it is a folder"):
        await storage.open_queue("q")


async def test_a_file_that_vanishes_under_its_owner_takes_nothing_more(
    storage: SQLiteStorage, path: Path
) -> None:
    queue = await storage.open_queue("q")
    await queue.commit(rows(1))
    aside = path.with_name("aside.db")
    path.rename(aside)

    with pytest.raises(StorageUnavailableError, match=r"queues\.db was removed while in use"):
        await queue.commit(rows(2))
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(StorageUnavailableError, match=r"queues\.db was replaced by another"):
        await queue.notes()

    aside.rename(path)
    await queue.commit(rows(3))
    assert await stored(queue) == [1, 3]


async def test_one_files_failure_reaches_all_who_waited_for_the_same_transaction(
    storage: SQLiteStorage,
) -> None:
    one, two = await storage.open_queue("one"), await storage.open_queue("two")

    with files_no_larger_than(300_000):
        results = await asyncio.gather(
            one.commit(rows(1)), two.commit(rows(*range(500), size=2000)), return_exceptions=True
        )

    assert isinstance(results[1], StorageUnavailableError)
    assert await stored(one) == ([1] if results[0] is None else [])
    assert await stored(two) == []


async def test_a_cancelled_commit_is_whole_and_in_nobodys_way(storage: SQLiteStorage) -> None:
    queue = await storage.open_queue("q")
    commit = asyncio.create_task(queue.commit(rows(*range(1000))))
    await asyncio.sleep(0)
    commit.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await commit

    await queue.commit(rows(5000))

    assert await stored(queue) == [*range(1000), 5000]
