"""One module per medium behind one protocol (storage.protocol). Opens the medium a URL or an object names."""

from __future__ import annotations

from typing import TypeGuard

from istos_worker.storage.protocol import QueueMedium, Row, Storage, StoragePlugin, WriteBatch

__all__ = ["QueueMedium", "Row", "Storage", "StoragePlugin", "WriteBatch", "open_storage"]

_NOT_YET = {
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "rediss": "Redis",
    "unix": "Redis",
}


def open_storage(what: str | Storage | StoragePlugin | None, *, writes_in_loop: bool = False) -> Storage:
    """The medium that `what` names; nothing is touched before its first `open_queue`.

    None and `memory:` keep everything in this process. `sqlite:///path` is a file (relative to the current
    directory; `sqlite:////abs/path` is absolute). An object with `open_queue` is used as it is, one with `put`,
    `get`, `delete` (the peer's storage plugins) through an adapter. `writes_in_loop`: this process does nothing but
    own queues, so its event loop may wait for a quick medium.

    Raises ValueError for a URL that names no medium of this version, TypeError for any other object.
    """
    if what is None:
        return _memory()
    if isinstance(what, str):
        return _open_url(what, writes_in_loop)
    if _is_storage(what):
        return what
    if isinstance(what, StoragePlugin):
        from istos_worker.storage.plugin import PluginStorage

        return PluginStorage(what)
    raise TypeError(f"storage must be a URL, a Storage, or an object with put, get and delete; got {what!r}")


def _is_storage(what: object) -> TypeGuard[Storage]:
    return hasattr(what, "open_queue")


def _open_url(url: str, writes_in_loop: bool) -> Storage:
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"storage URL {url!r} has no scheme; a file is written sqlite:///{url}")
    family = scheme.partition("+")[0].lower()
    if family == "memory":
        return _memory()
    if family == "sqlite":
        return _sqlite(url, rest, writes_in_loop)
    if family in _NOT_YET:
        raise ValueError(
            f"this version has no {_NOT_YET[family]} store ({scheme}:); use sqlite:///path or memory:"
        )
    raise ValueError(f"unknown storage URL scheme {scheme!r}; use sqlite:///path or memory:")


def _memory() -> Storage:
    from istos_worker.storage.memory import MemoryStorage

    # Nobody else can hold this object, so nobody could read back what a commit left in it.
    return MemoryStorage(may_skip_commits=True)


def _sqlite(url: str, rest: str, writes_in_loop: bool) -> Storage:
    from urllib.parse import unquote

    if not rest.startswith("///"):
        raise ValueError(f"storage URL {url!r} needs three slashes before the path: sqlite:///path")
    path = unquote(rest[3:])
    if path == ":memory:":
        return _memory()
    if not path:
        raise ValueError(f"storage URL {url!r} names no file: sqlite:///path")
    from istos_worker.storage.sqlite import SQLiteStorage

    return SQLiteStorage(path, writes_in_loop=writes_in_loop)
