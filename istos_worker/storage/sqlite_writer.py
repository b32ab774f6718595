"""Who does a SQLite file's work, in order, and joins the batches that wait. Knows no SQL.

One per file and process, shared by everyone in the process who opens that file; it ends with its last queue. The
work is done by a thread; with `write_now` by the caller's own, as long as the medium is quick: two hand-overs cost
more than a sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage.protocol import WriteBatch
from istos_worker.storage.sqlite_file import SQLiteFile

T = TypeVar("T")

QUICK_S = 0.003
"""Where two writes in a row take longer they must not hold up an event loop. One alone may: SQLite moves its log into
the file now and then."""
_WARY_S = 1.0
"""After two slow writes or a failed one the thread does the writing for so long."""

_registry: dict[tuple[int, str], FileWriter] = {}
_registry_lock = threading.RLock()  # a finalizer may run while its own thread holds it


@dataclass(slots=True)
class _Request:
    """Work on the file; or, with `batch`, a write to the queue `name`."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any] | None = None
    name: str = ""
    batch: WriteBatch | None = None


class _Answer(NamedTuple):
    request: _Request
    result: Any
    error: BaseException | None

    def give(self) -> None:
        loop, future = self.request.loop, self.request.future
        with contextlib.suppress(RuntimeError):  # its loop is closed, nobody waits
            loop.call_soon_threadsafe(_settle, future, self.result, self.error)


class FileWriter:
    """Borrow one with `borrow`; it stops when every name borrowed has been given back."""

    def __init__(self, file: SQLiteFile) -> None:
        self.file = file
        self._names: set[str] = set()
        self._key = (os.getpid(), file.path)
        self._is_stopped = False
        self._in_use = threading.Lock()
        self._wary_until = 0.0
        self._was_slow = False
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        thread_name = f"sqlite {os.path.basename(file.path)}"
        threading.Thread(target=self._run, name=thread_name, daemon=True).start()

    async def write(self, name: str, batch: WriteBatch) -> None:
        """Raises StorageUnavailableError. If cancelled, the batch is written all the same."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.put(_Request(loop, future, name=name, batch=batch))
        await future

    def write_now(self, name: str, batch: WriteBatch) -> bool:
        """Writes in the calling thread, and returns when it is done; False, and nothing done, when that could take
        long. Raises StorageUnavailableError."""
        if time.monotonic() < self._wary_until or not self._in_use.acquire(timeout=QUICK_S):
            return False
        try:
            self._timed([(name, batch)])
        finally:
            self._in_use.release()
        return True

    async def call(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread, after everything that was asked before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.put(_Request(loop, future, work=work))
        return await future

    async def give_back(self, name: str) -> None:
        """Returns when the file is closed, if this was its last queue."""
        await self.call(lambda: self._forget(name))

    def abandon(self, name: str) -> None:
        """As give_back, from anywhere (a finalizer), without waiting."""
        self._forget(name)
        self._waiting.put(None)

    def _forget(self, name: str) -> None:
        with _registry_lock:
            self._names.discard(name)

    def _run(self) -> None:
        while not self._is_stopped:
            requests = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    requests.append(self._waiting.get_nowait())
            with self._in_use:
                answers = self._served(requests)
            for answer in answers:
                answer.give()

    def _served(self, requests: Sequence[_Request | None]) -> list[_Answer]:
        """In order; neighbouring writes in one transaction. Whoever waits for an answer has its name reserved,
        so the thread never stops on anyone."""
        writes: list[_Request] = []
        answers: list[_Answer] = []
        for request in requests:
            if request is not None and request.batch is not None:
                writes.append(request)
                continue
            answers += self._write_all(writes)
            writes = []
            if request is None:
                self._stop_if_unused()
            else:
                answers.append(self._do(request))
        return answers + self._write_all(writes)

    def _write_all(self, requests: Sequence[_Request]) -> list[_Answer]:
        if not requests:
            return []
        error: BaseException | None = None
        try:
            self._timed([(r.name, r.batch) for r in requests if r.batch is not None])
        except BaseException as failure:  # whatever it is, those who wait must hear of it
            error = failure
        return [_Answer(request, None, error) for request in requests]

    def _timed(self, batches: Sequence[tuple[str, WriteBatch]]) -> None:
        begun, is_quick = time.monotonic(), False
        try:
            self.file.write(batches)
            was_slow, self._was_slow = self._was_slow, time.monotonic() - begun > QUICK_S
            is_quick = not (was_slow and self._was_slow)
        finally:
            if not is_quick:
                self._wary_until = time.monotonic() + _WARY_S

    def _do(self, request: _Request) -> _Answer:
        assert request.work is not None
        try:
            result = request.work()
        except BaseException as failure:  # as above
            return _Answer(request, None, failure)
        self._stop_if_unused()  # before the answer: give_back promises a closed file
        return _Answer(request, result, None)

    def _stop_if_unused(self) -> None:
        with _registry_lock:  # held while closing, so that the next borrower finds the file closed
            if self._names or self._is_stopped:
                return
            self.file.close()
            self._is_stopped = True
            _registry.pop(self._key, None)


def borrow(path: str, name: str, *, busy_timeout_s: float) -> FileWriter:
    """This process's writer of the file, with `name` reserved there.

    Raises StorageUnavailableError when the name is taken."""
    path = os.path.realpath(path)
    with _registry_lock:
        key = (os.getpid(), path)
        writer = _registry.get(key)
        if writer is None:
            writer = _registry[key] = FileWriter(SQLiteFile(path, busy_timeout_s=busy_timeout_s))
        if name in writer._names:
            raise StorageUnavailableError(
                f"queue {name!r} in sqlite file {path} already has an owner in this process"
            )
        writer._names.add(name)
        return writer


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
