"""What a storage URL or object means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from istos_worker.storage import open_storage
from istos_worker.storage.memory import MemoryStorage
from istos_worker.storage.plugin import PluginStorage
from istos_worker.storage.sqlite import SQLiteStorage


class ThreeMethods:
    async def put(self, key: str, value: Any) -> None: ...

    async def get(self, key: str) -> Any | None: ...

    async def delete(self, key: str) -> None: ...


@pytest.mark.parametrize("what", [None, "memory:", "memory://", "sqlite:///:memory:"])
async def test_memory_is_the_default_and_tells_that_nobody_will_look(what: str | None) -> None:
    storage = open_storage(what)

    assert isinstance(storage, MemoryStorage)
    queue = await storage.open_queue("q")
    assert not queue.is_durable
    assert queue.may_skip_commits


async def test_a_memory_store_that_others_hold_is_committed_to() -> None:
    storage = MemoryStorage()

    assert open_storage(storage) is storage
    assert not (await storage.open_queue("q")).may_skip_commits


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///queues.db", "queues.db"),
        ("sqlite:///data/with%20space.db", "data/with space.db"),
        ("sqlite:////var/lib/queues.db", "/var/lib/queues.db"),
    ],
)
def test_a_sqlite_url_is_relative_with_three_slashes_and_absolute_with_four(
    url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    storage = open_storage(url)

    assert isinstance(storage, SQLiteStorage)
    assert storage.path == str(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_with_put_get_delete_is_adapted() -> None:
    assert isinstance(open_storage(ThreeMethods()), PluginStorage)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host/db", "no PostgreSQL store"),
        ("postgresql+asyncpg://host/db", "no PostgreSQL store"),
        ("redis://host", "no Redis store"),
        ("mysql://host", "unknown storage URL scheme 'mysql'"),
        ("queues.db", "sqlite:///queues.db"),
        ("sqlite://queues.db", "three slashes"),
        ("sqlite:///", "names no file"),
    ],
)
def test_a_url_that_names_no_store_says_what_to_write_instead(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_storage(url)


def test_an_object_that_is_no_store_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="put, get and delete"):
        open_storage(object())  # type: ignore[arg-type]


def test_the_package_imports_no_medium_before_it_is_asked_for() -> None:
    program = (
        "import sys, istos_worker.storage as s; s.open_storage('memory:');"
        "print([m for m in ('sqlite3', 'istos_worker.storage.plugin') if m in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
