"""The companion's side of its link: a worker's, but it stops last."""

from __future__ import annotations

import faulthandler
import signal
import socket
from typing import Self

from supervisor import early, prctl
from supervisor.berth import Berth, Inherited
from supervisor.board import Board
from supervisor.link import WorkerLink
from supervisor.orders import Orphaned
from supervisor.recorder import PARENT_DIED, Recorder


class CompanionLink(WorkerLink):
    """Signals sent to it are passed on to the supervisor, which knows when its turn has come."""

    lifeline_fd = -1

    def _stopped_by(self, signum: int, at: float) -> None:
        self._channel.send({"t": "signaled", "signum": signum})

    def _orphaned(self) -> None:
        """The workers still need it: wait until the last of them has let go of the lifeline."""
        if self._is_orphan or self._loop is None:
            return
        self._is_orphan = True
        self._leave_behind_a_fuse()
        self._loop.call_later(self.berth.drain_s, self._nobody_left)
        if self.lifeline_fd >= 0:
            self._loop.add_reader(self.lifeline_fd, self._nobody_left)

    def _nobody_left(self) -> None:
        if self._loop is not None and self.lifeline_fd >= 0:
            self._loop.remove_reader(self.lifeline_fd)
            self.lifeline_fd = -1
            self._light_fuse()  # again: its own time to stop begins only now
            self._stream.put(Orphaned(deadline_s=0.0))

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._set_title()
        return self


def companion_link() -> CompanionLink:
    """In the process that the supervisor exec'd; call it before anything slow is imported."""
    inherited = Inherited.take()
    if inherited.berth is None:
        raise RuntimeError("this process was started as a zygote, not as a companion")
    recorder = Recorder()
    recorder.install()
    faulthandler.register(signal.SIGUSR1, file=inherited.stacks_fd, all_threads=True)
    prctl.signal_on_parent_death(PARENT_DIED)
    early.release_signals()
    berth = Berth.from_wire(inherited.berth)
    cell = Board(inherited.board_fd).writer(berth.cell)
    link = CompanionLink(berth, socket.socket(fileno=inherited.link_fd), cell=cell, recorder=recorder)
    link.lifeline_fd = inherited.lifeline_fd
    return link
