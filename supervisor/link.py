"""A worker's side of its link to the supervisor. Used inside the worker's event loop."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from supervisor import orders
from supervisor.berth import Berth
from supervisor.board import CellWriter
from supervisor.ladder import Ladder, Rung, climb
from supervisor.orders import Drain, HandBack, Message, Order, Orphaned
from supervisor.recorder import PARENT_DIED, Recorder
from supervisor.stacks import render_tasks
from supervisor.titles import set_title, worker_title
from supervisor.wire import Channel

BEAT_EVERY_S = 1.0
_BEAT_EVERY_AT_LEAST_S = 0.05
_TITLE_EVERY_S = 0.5
_LAST_RESORT_S = 1.0


class OrderStream:
    """Orders in the order they came; iteration ends when the link is closed."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Order] = collections.deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, order: Order) -> None:
        self._waiting.append(order)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Order:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class WorkerLink:
    """See docs/supervision.md, "Worker side". Not thread-safe: call it in the loop's thread."""

    def __init__(self, berth: Berth, sock: socket.socket, *, cell: CellWriter, recorder: Recorder) -> None:
        self.berth = berth
        self.describe: Callable[[], str] | None = None
        self._channel = Channel(sock, on_message=self._received, on_eof=self._orphaned)
        self._cell = cell
        self._recorder = recorder
        recorder.on_parent_death = self._fuse_if_orphan
        self._parents = {berth.supervisor_pid}
        self._ladder = Ladder()
        self._stream = OrderStream()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_orphan = self._fused = False
        self._retiring = False
        self._title = (-1, -1)
        self._busy_of = (0, 0)
        self._titled_at = 0.0
        self._reported = False

    @property
    def slot(self) -> int:
        return self.berth.slot

    @property
    def count(self) -> int:
        return self.berth.count

    @property
    def generation(self) -> int:
        return self.berth.generation

    def introduce(self, zygote_pid: int) -> None:
        """Say who this is, in case the zygote no longer can; as a parent it is as good as the supervisor."""
        self._parents.add(zygote_pid)
        self._channel.send({"t": "hello", "pid": os.getpid()})
        self._fuse_if_orphan()  # both may have died before this process asked to be told

    def last_words(self, text: str) -> None:
        """Why this process ends; printed here only if the supervisor cannot."""
        if self._is_orphan:
            print(text, file=sys.stderr)
        self._channel.send({"t": "last_words", "text": text})

    async def __aenter__(self) -> Self:
        loop = self._loop = asyncio.get_running_loop()
        self._recorder.wake = lambda: loop.call_soon_threadsafe(self._handle_signals)
        self._channel.attach(loop)
        self._handle_signals()
        self._tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.wake = None
        if self._timer is not None:
            self._timer.cancel()
        # The descriptor stays open: its end-of-file is this process's death, which is yet to come.
        self._channel.detach()
        self._stream.close()

    def orders(self) -> OrderStream:
        return self._stream

    def ready(self) -> None:
        self.beat()
        if not self._reported:
            self._cell.figures(done=0, busy=0, slots=0, serving=True)
        self._channel.send({"t": "ready", "pid": os.getpid()})

    def report(
        self, *, done: int, busy: int, slots: int, held: Sequence[str] = (), serving: bool = True
    ) -> None:
        """All figures at once; `held` names what is being worked on and comes back in the obituary."""
        self._cell.figures(done=done, busy=busy, slots=slots, serving=serving)
        self._cell.held(held)
        self._reported, self._busy_of = True, (busy, slots)
        if self._title != self._busy_of and time.monotonic() - self._titled_at > _TITLE_EVERY_S:
            self._set_title()
        if self.berth.max_units is not None and done >= self.berth.max_units:
            self.retire(f"{done} units done")

    def beat(self) -> None:
        stall_s = self.berth.stall_s
        self._cell.beat(float("inf") if stall_s is None else time.monotonic() + stall_s)

    def retire(self, reason: str) -> None:
        """Ask to be replaced; a `Drain` follows when the replacement is ready."""
        if not self._retiring:
            self._retiring = True
            self._channel.send({"t": "retire", "reason": reason})

    def give_up(self, text: str, exit_code: int) -> None:
        """This can never work: the fleet prints `text` once and exits with `exit_code`."""
        self._channel.send({"t": "give_up", "text": text, "exit_code": exit_code})

    def name_self(self, label: str) -> None:
        self._cell.label(label)

    def acknowledge(self, message: Message) -> None:
        self._channel.send({"t": "acknowledged", "id": message.id})

    def _tick(self) -> None:
        assert self._loop is not None
        self.beat()
        if self._title != self._busy_of:
            self._set_title()
        self._check_parent()
        self._timer = self._loop.call_later(beat_every_s(self.berth.stall_s), self._tick)

    def _set_title(self) -> None:
        self._title = self._busy_of
        self._titled_at = time.monotonic()
        berth = self.berth
        text = worker_title(berth.slot, berth.generation, *self._busy_of)
        set_title(berth.name, text if berth.role == "worker" else berth.role)

    def _received(self, message: dict[str, Any]) -> None:
        if message.get("t") == "stacks":
            self._channel.send({"t": "tasks", "text": self._tasks()})
            return
        order = orders.from_wire(message)
        if order is not None:
            self._stream.put(order)

    def _tasks(self) -> str:
        assert self._loop is not None
        text = render_tasks(self._loop)
        if self.describe is None:
            return text
        try:
            return f"{text}\n{self.describe()}"
        except Exception as error:  # the application's code: its failure is part of the picture
            return f"{text}\ndescribe failed: {error!r}"

    def _handle_signals(self) -> None:
        for signum, at in self._recorder.take():
            if signum == PARENT_DIED:
                self._check_parent()
            elif signum == signal.SIGHUP:
                self._hung_up()
            else:
                self._stopped_by(signum, at)

    def _hung_up(self) -> None:
        self._channel.send({"t": "hangup"})

    def _stopped_by(self, signum: int, at: float) -> None:
        before, self._ladder = self._ladder.rung, climb(self._ladder, signum, at)
        if self._ladder.rung == before:
            return
        reason = signal.Signals(signum).name
        at_once = self._ladder.rung >= Rung.HAND_BACK
        self._channel.send({"t": "leaving", "reason": reason, "at_once": at_once})
        match self._ladder.rung:
            case Rung.DRAIN:
                self._stream.put(Drain(deadline_s=self.berth.drain_s, reason=reason))
            case Rung.HAND_BACK:
                self._stream.put(HandBack(reason=reason))
            case Rung.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Rung.RUN:
                pass

    def _check_parent(self) -> None:
        # The zygote's death makes this a child of the supervisor; anything else is an orphan's parent.
        if os.getppid() not in self._parents:
            self._orphaned()

    def _orphaned(self) -> None:
        if not self._is_orphan:
            self._is_orphan = True
            self._leave_behind_a_fuse()
            self._stream.put(Orphaned(deadline_s=self.berth.drain_s))

    def _fuse_if_orphan(self) -> None:
        """In the signal handler itself: a blocked loop would not get to it."""
        if os.getppid() not in self._parents:
            self._leave_behind_a_fuse()

    def _leave_behind_a_fuse(self) -> None:
        """Nobody is left to KILL this process: a C thread ends it even if the interpreter hangs."""
        if not self._fused:
            self._fused = True
            self._light_fuse()

    def _light_fuse(self) -> None:
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            faulthandler.dump_traceback_later(self.berth.drain_s + _LAST_RESORT_S, exit=True)


def beat_every_s(stall_s: float | None) -> float:
    """A healthy loop vouches for itself some times within the stall timeout, also within a short one."""
    return BEAT_EVERY_S if stall_s is None else max(min(BEAT_EVERY_S, stall_s / 3), _BEAT_EVERY_AT_LEAST_S)
