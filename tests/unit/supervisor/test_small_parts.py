"""Wire, post, orders, exits, settings, notify: what each promises."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.birth import user_traceback
from supervisor.exits import Exited, Signaled, exit_from_status, likely_cause
from supervisor.logs import ShieldedHandler
from supervisor.obituary import OomKills
from supervisor.orders import Drain, HandBack, Message, Order, Orphaned, Quiet, Resume, from_wire, to_wire
from supervisor.pidfile import Pidfile
from supervisor.post import Post
from supervisor.settings import Command, Recycling, Restarts, Settings, Timeouts
from supervisor.stacks import render_tasks
from supervisor.wire import Channel, Lines, encode


@pytest.mark.parametrize(
    "order",
    [
        Drain(deadline_s=None, reason="why"),
        Orphaned(deadline_s=1.5),
        HandBack(reason="why"),
        Quiet(),
        Resume(),
        Message(id=3, body={"bury": ["a"]}),
    ],
)
def test_an_order_survives_the_wire(order: Order) -> None:
    (message,) = Lines().feed(encode(to_wire(order)))

    assert from_wire(message) == order


def test_an_unknown_order_is_no_order() -> None:
    assert from_wire({"t": "from a newer supervisor"}) is None


@given(st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3), max_size=3), st.data())
def test_lines_come_whole_however_they_are_cut(messages: list[dict[str, str]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in messages)
    cut = data.draw(st.integers(0, len(stream)))
    lines = Lines()

    assert lines.feed(stream[:cut]) + lines.feed(stream[cut:]) == messages


async def test_a_channel_keeps_what_the_other_end_does_not_read_and_tells_its_end_once() -> None:
    ours, theirs = socket.socketpair()
    heard: list[int] = []
    done, ended = asyncio.Event(), asyncio.Event()

    def hear(message: dict[str, Any]) -> None:
        heard.append(message["n"])
        if message["n"] == 1999:
            done.set()

    sender = Channel(ours, on_message=hear, on_eof=ended.set)
    receiver = Channel(theirs, on_message=hear, on_eof=lambda: None)
    loop = asyncio.get_running_loop()
    sender.attach(loop)
    for number in range(2000):
        sender.send({"n": number, "padding": "x" * 500})

    receiver.attach(loop)
    async with asyncio.timeout(10):
        await done.wait()
    receiver.close()
    async with asyncio.timeout(10):
        await ended.wait()
    sender.send({"n": "to nobody"})

    assert heard == list(range(2000))
    sender.close()


class Recipient:
    def __init__(self) -> None:
        self.unacknowledged: dict[int, Message] = {}
        self.told: list[Order] = []

    def tell(self, order: Order) -> None:
        self.told.append(order)


def test_a_message_waits_for_somebody_and_outlives_who_did_not_acknowledge_it() -> None:
    post, first, second = Post(), Recipient(), Recipient()
    post.add({"bury": 1})

    post.deliver_to(None)
    post.deliver_to(first)
    post.deliver_to(second)
    assert [len(first.told), len(second.told)] == [1, 0]
    post.take_back(first)
    post.deliver_to(second)

    assert second.told == first.told


@pytest.mark.parametrize(
    ("status", "says"), [(0, "exited with code 0"), (7 << 8, "exited with code 7"), (9, "killed by SIGKILL")]
)
def test_an_exit_is_said_in_words(status: int, says: str) -> None:
    assert str(exit_from_status(status)) == says


def test_the_likely_cause_of_a_kill() -> None:
    killed = Signaled(signal.SIGKILL)

    assert "stalled" in likely_cause(killed, ours="stalled", oom_kills=1)
    assert "out of memory (1 kernel" in likely_cause(killed, ours=None, oom_kills=1)
    assert "likely out of memory or an operator" in likely_cause(killed, ours=None, oom_kills=0)
    assert "native code" in likely_cause(Signaled(signal.SIGSEGV), ours=None, oom_kills=0)
    assert likely_cause(Exited(7), ours=None, oom_kills=0) == "exited with code 7"


def test_oom_kills_are_counted_from_the_last_look() -> None:
    totals = iter([3, 3, 5, 4])
    kills = OomKills(lambda: next(totals))

    assert [kills.since_last() for _ in range(3)] == [0, 2, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settings(procs=-1, zygote=Command(argv=("x",))),
        lambda: Command(argv=()),
        lambda: Timeouts(drain_s=-1),
        lambda: Timeouts(stall_s=0),
        lambda: Recycling(max_units=0),
        lambda: Recycling(max_units_jitter=-1),
        lambda: Restarts(crashes=0),
    ],
)
def test_settings_are_refused_at_the_door(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        wrong()


def test_each_worker_has_a_limit_of_its_own() -> None:
    recycling = Recycling(max_units=5, max_units_jitter=2)

    assert {recycling.draw_max_units() for _ in range(500)} == {5, 6, 7}
    assert Recycling(max_units_jitter=2).draw_max_units() is None


def test_a_pidfile_is_held_by_one_and_a_stale_one_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("999999\n")

    with Pidfile(path):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(OSError, match="already running with pid"), Pidfile(path):
            pass

    assert not path.exists()


def test_a_pidfile_that_is_no_file_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(OSError, match="not a regular file"), Pidfile(path):
        pass

    assert path.is_fifo()


def test_a_pidfile_of_another_is_not_removed_with_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    with Pidfile(path):
        path.unlink()
        path.write_text("another\n")

    assert path.read_text() == "another\n"


def test_a_pidfile_removed_by_its_last_holder_while_we_locked_it_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pid"
    lock = fcntl.flock

    def holder_leaves_just_before(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        path.unlink()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", holder_leaves_just_before)

    with Pidfile(path):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(OSError, match="already running"), Pidfile(path):
            pass


def test_a_log_pipe_that_is_full_loses_lines_and_says_so_later() -> None:
    read, write = os.pipe()
    handler = ShieldedHandler(write, capacity=5)
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", ("y" * 20_000,), None)

    for _ in range(50):
        handler.emit(record)

    assert handler.lost > 30
    text = b""
    while b"log lines were lost" not in text:
        text += os.read(read, 65536)
    assert b"%d log lines were lost" % handler.lost in text
    handler.close()
    os.close(read)


def test_a_users_traceback_begins_in_the_users_code(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def f():\n    return 1 / 0\nf()\n")
    try:
        exec(compile((tmp_path / "app.py").read_text(), str(tmp_path / "app.py"), "exec"), {})
    except ZeroDivisionError as error:
        text = user_traceback(error)

    assert "line 2, in f" in text
    assert text.endswith("ZeroDivisionError: division by zero")


async def test_the_stack_of_a_task_reaches_down_to_where_it_waits() -> None:
    async def innermost(started: asyncio.Event) -> None:
        started.set()
        await asyncio.Event().wait()

    async def outer(started: asyncio.Event) -> None:
        await innermost(started)

    started = asyncio.Event()
    task = asyncio.create_task(outer(started), name="the one")
    await started.wait()

    text = render_tasks(asyncio.get_running_loop())

    assert "task 'the one'" in text
    assert "in outer" in text
    assert "in innermost" in text
    task.cancel()
