"""One owner process per file, held by the kernel: a killed owner has let go before anyone can ask."""

from __future__ import annotations

import contextlib
import fcntl
import os

from istos_worker.errors import StorageUnavailableError


class OwnerLock:
    """An exclusive lock on `{path}.lock`.

    A POSIX record lock, not flock: it belongs to the process alone, so a child that the owner forked cannot
    keep it after the owner's death. Within one process it does not exclude; the caller sees to that. The lock
    file is never removed: a removed name lets two processes hold two files.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock_path = path + ".lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Idempotent. Raises StorageUnavailableError when another process holds it, OSError otherwise."""
        if self._fd is not None:
            return
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _pid_in(fd)
            os.close(fd)
            raise StorageUnavailableError(
                f"sqlite file {self._path} already has an owner: process {holder} holds {self._lock_path}; "
                "stop it, or give this owner a file of its own"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        with contextlib.suppress(OSError):  # the pid is for the message above only; the disk may be full
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _pid_in(fd: int) -> str:
    return os.pread(fd, 20, 0).decode("ascii", "replace") or "unknown"
