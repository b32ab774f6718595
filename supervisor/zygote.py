"""The process that imported the application and forks workers. Holds no state worth saving."""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from supervisor import early, forksafety, heap, prctl
from supervisor.berth import Berth, Inherited
from supervisor.birth import be_born, flush_output, live, user_traceback
from supervisor.board import Board
from supervisor.exits import ExitCode
from supervisor.link import WorkerLink
from supervisor.recorder import swallow_signals
from supervisor.titles import set_title
from supervisor.wire import Lines, encode

_SWALLOWED = tuple(early.FLEET_SIGNALS - {signal.SIGUSR1})


class LoadFailed(Exception):  # noqa: N818
    """Raised by `load` to say exactly what is to be printed; no traceback is added."""


def serve_zygote(
    *,
    load: Callable[[], None],
    child: Callable[[WorkerLink], int],
    suspects: tuple[type, ...] = (),
    fds: Sequence[int] = (),
) -> int:
    """Import the application, then fork workers on order until the supervisor is gone. `fds`: what
    `embryo.grow_up` returned.

    `suspects` are types whose instances must not exist when forking (sessions with threads of their
    own); living ones are named in a warning. Returns the process's exit code.
    """
    inherited = Inherited.take(fds)
    set_title(inherited.name, f"zygote gen {inherited.generation} [importing]")
    _own_signals(inherited.stacks_fd)
    _die_with(inherited.supervisor_pid)
    early.release_signals()
    zygote = Zygote(inherited, child)
    try:
        load()
    except LoadFailed as failure:
        return zygote.report_failure(str(failure))
    except BaseException as error:  # the application's code: even a SystemExit is its failure to load
        return zygote.report_failure(user_traceback(error))
    flush_output()
    _own_signals(inherited.stacks_fd)
    set_title(inherited.name, f"zygote gen {inherited.generation}")
    zygote.report_loaded(forksafety.findings(suspects, own_fds=set(inherited.fds())))
    # Not collected first: what that frees are holes all over the heap, and each one that a worker fills is a page
    # that it no longer shares (half a megabyte a worker).
    heap.give_back()
    gc.freeze()
    return zygote.serve()


class Zygote:
    """Its link is read with recv_fds: every fork order comes with the new worker's descriptors."""

    def __init__(self, inherited: Inherited, child: Callable[[WorkerLink], int]) -> None:
        self._child = child
        self._board = Board(inherited.board_fd)
        self._link = socket.socket(fileno=inherited.link_fd)
        self._lines = Lines()
        self._fds: deque[int] = deque()
        self._pid = os.getpid()

    def report_loaded(self, warnings: list[str]) -> None:
        self._send({"t": "loaded", "warnings": warnings})

    def report_failure(self, text: str) -> int:
        flush_output()
        self._send({"t": "load_failed", "text": text})
        return ExitCode.NO_IMPORT

    def serve(self) -> int:
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_only)
        self._reap()
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(wake_r, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_r in ready:
                os.read(wake_r, 4096)
            self._reap()
            if self._link.fileno() in ready and not self._obey():
                return 0

    def _obey(self) -> bool:
        """False when the supervisor is gone or has closed the link: nothing is left to do here."""
        try:
            data, fds, _, _ = socket.recv_fds(self._link, 65536, 64)
        except ConnectionResetError:  # it left unread what we said
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds.extend(fds)
        for message in self._lines.feed(data):
            self._fork(message)
        return bool(data)

    def _fork(self, order: dict[str, Any]) -> None:
        link_fd, stacks_fd = self._fds.popleft(), self._fds.popleft()
        early.hold_signals()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(order, link_fd, stacks_fd)
            self._send({"t": "forked", "serial": order["serial"], "pid": pid})
        except OSError as error:
            self._send({"t": "fork_failed", "serial": order["serial"], "error": str(error)})
        finally:
            early.release_signals()
            os.close(link_fd)
            os.close(stacks_fd)

    def _become_worker(self, order: dict[str, Any], link_fd: int, stacks_fd: int) -> None:
        code = 1
        try:
            os.close(self._link.detach())
            signal.set_wakeup_fd(-1)
            berth, sock = Berth.from_wire(order["berth"]), socket.socket(fileno=link_fd)
            recorder = be_born(stacks_fd)
            set_title(berth.name, f"worker {berth.slot} gen {berth.generation} [starting]")
            link = WorkerLink(berth, sock, cell=self._board.writer(berth.cell), recorder=recorder)
            link.introduce(self._pid)
            code = live(self._child, link)
        except BaseException as error:  # its obituary can only have the exit code
            print(f"a new worker failed: {user_traceback(error)}", file=sys.stderr)
            flush_output()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send({"t": "exit", "pid": pid, "status": status, "peak": usage.ru_maxrss})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(encode(message))
        except OSError:
            os._exit(0)  # the supervisor is gone; the workers know it by themselves


def _own_signals(stacks_fd: int) -> None:
    swallow_signals(_SWALLOWED)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)


def _die_with(supervisor_pid: int) -> None:
    """An import that never returns would not see the end-of-file; the workers do not need us."""
    prctl.signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        os._exit(0)


def _wake_only(_signum: int, _frame: object) -> None:
    return None
