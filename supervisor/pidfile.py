"""A pidfile that only a living process can hold: the lock counts, not the file or the number in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self


class Pidfile:
    """A stale file is taken over; a held one, and one that cannot be written, raises OSError on entry."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> Self:
        while self._fd < 0:
            self._lock()
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        except OSError as error:  # a full disk
            self.__exit__(None, None, None)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            if self._is_at(self._path):  # not another's, who came after somebody had removed ours
                self._path.unlink()
        os.close(self._fd)

    def _is_at(self, path: Path) -> bool:
        return os.path.samestat(os.fstat(self._fd), os.stat(path))

    def _lock(self) -> None:
        """Leaves no descriptor if the file locked is not, or no longer, the one that `path` names."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):  # /dev/null, which must not be removed at the end
                raise OSError(errno.EINVAL, "not a regular file", str(self._path))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                self._fd = fd
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            text = f"already running with pid {holder}"
            raise OSError(errno.EEXIST, text, str(self._path)) from None
        except FileNotFoundError:
            pass  # its last holder removed it meanwhile
        finally:
            if self._fd < 0:
                os.close(fd)
