"""A program started before it is told what it is: it becomes that, or is gone."""

from __future__ import annotations

import os
import sys

import pytest

from supervisor.embryo import Embryo
from supervisor.settings import Command, Settings
from supervisor.spawn import Shared, start_zygote

PROGRAM = """
import os, sys
from supervisor.embryo import grow_up
fds = grow_up()
from supervisor.titles import set_title
set_title("grown", "a title of some length, to see that there is room for it")
with open("/proc/self/cmdline") as file:
    title = file.read().rstrip("\\0 ")
os.write(fds[0], f"{os.environ['SAID']}|{'UNSAID' in os.environ}|{title}".encode())
"""


def embryo() -> Embryo:
    return Embryo((sys.executable, "-c", PROGRAM))


def test_it_grows_into_what_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSAID", "1")
    reading, writing = os.pipe()
    one = embryo()

    pid = one.grow({"SAID": "x" * 200_000, "PATH": os.environ["PATH"]}, [writing])
    os.close(writing)

    with os.fdopen(reading) as pipe:
        said, has_unsaid, title = pipe.read().split("|")
    assert said == "x" * 200_000
    assert has_unsaid == "False"
    assert sys.platform != "linux" or title.startswith("grown: a title of some length, to see that")
    assert os.waitpid(pid, 0) == (pid, 0)
    one.abandon()  # it has grown: nothing is left to do


def test_one_that_is_abandoned_is_gone() -> None:
    one = embryo()

    one.abandon()
    one.abandon()

    with pytest.raises(ChildProcessError):
        os.waitpid(one.pid, os.WNOHANG)


def test_one_that_has_died_cannot_grow() -> None:
    one = Embryo((sys.executable, "-c", ""))
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(BrokenPipeError):
        one.grow({"SAID": "x"}, [0])
    one.abandon()


def test_another_program_takes_the_place_of_one_that_has_died() -> None:
    one = Embryo((sys.executable, "-c", ""))
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    settings = Settings(procs=1, zygote=Command(argv=(sys.executable, "-c", "")))
    shared = Shared.create()

    started = start_zygote(settings, shared, generation=1, embryo=one)

    assert started.pid != one.pid
    with pytest.raises(ChildProcessError):  # collected by who started it: its pid may be anybody's by now
        os.waitpid(one.pid, os.WNOHANG)
    one.abandon()
    assert os.waitpid(started.pid, 0)[0] == started.pid
    started.link.close()
    os.close(started.stacks_fd)
    shared.close()


def test_a_program_that_was_started_the_usual_way_is_grown_up() -> None:
    from supervisor.embryo import grow_up

    assert grow_up() == []
