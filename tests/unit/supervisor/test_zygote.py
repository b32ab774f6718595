"""What the zygote's forks do before they are workers."""

from __future__ import annotations

import json
import os
import socket

import pytest

from supervisor.berth import Inherited
from supervisor.spawn import Shared, nonblocking_pipe
from supervisor.zygote import Zygote


def test_a_worker_that_fails_before_it_can_speak_says_why_on_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    shared = Shared.create()
    ours, theirs = socket.socketpair()
    inherited = Inherited(
        board_fd=os.dup(shared.board.fd),
        lifeline_fd=shared.lifeline_write_fd,
        link_fd=theirs.detach(),
        generation=1,
        supervisor_pid=os.getpid(),
        name="test",
    )
    zygote = Zygote(inherited, lambda _: 0)
    workers_end, other_end = socket.socketpair()
    stacks_read, stacks_write = nonblocking_pipe()
    zygote._fds.extend((workers_end.detach(), stacks_write))

    zygote._fork({"serial": 1, "berth": {"slot": 0}})

    forked = json.loads(ours.recv(4096))
    assert os.waitstatus_to_exitcode(os.waitpid(forked["pid"], 0)[1]) == 1
    assert "a new worker failed:" in capfd.readouterr().err
    for end in (ours, other_end):
        end.close()
    os.close(stacks_read)
    shared.close()
