"""`istos-queue top` on a real terminal, and its single frames."""

from __future__ import annotations

import sys

import orjson
import pytest

from tests.fixtures.queue_commands import Commands
from tests.fixtures.terminals import ALTERNATE, BACK, Terminal

TOP = ("-m", "istos_worker.cli.queue", "top", "--interval", "100ms")


def top(commands: Commands, *words: str) -> Terminal:
    return Terminal((*TOP, *words), env={**commands.env, "ISTOS_QUEUE_CONNECT": commands.endpoint})


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_shows_the_queues_it_finds_and_gives_the_terminal_back(istos_queue: Commands, key: bytes) -> None:
    istos_queue.serve("--queue", "jobs/a", "--queue", "jobs/b", "--storage", "memory:")
    istos_queue.out("enqueue", "jobs/b", "-", stdin="1\n" * 17)

    with top(istos_queue) as terminal:
        terminal.sends(ALTERNATE)
        terminal.shows("queues 2/2")
        terminal.shows("17")
        istos_queue.out("pause", "jobs/a")
        terminal.shows("paused")
        assert terminal.modes_now() != terminal.modes
        terminal.type(key)
        terminal.sends(BACK)

        assert terminal.wait() == 0
        assert terminal.modes_now() == terminal.modes


def test_a_queue_whose_owner_is_gone_is_shown_as_such_and_comes_back(istos_queue: Commands) -> None:
    owner = istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    with top(istos_queue) as terminal:
        terminal.shows("queues 1/1")
        owner.kill()
        terminal.shows("owner gone")
        istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")
        terminal.shows("queues 1/1")
        terminal.type(b"q")

        assert terminal.wait() == 0


def test_it_waits_for_an_owner_that_comes_later(istos_queue: Commands) -> None:
    with top(istos_queue, "jobs/a") as terminal:
        terminal.shows("nobody answers at")
        terminal.shows("owner gone")
        istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")
        terminal.shows("queues 1/1")


def test_a_stop_from_the_keyboard_gives_the_terminal_back_until_it_goes_on(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    with top(istos_queue) as terminal:
        terminal.shows("queues 1/1")
        terminal.type(b"\x1a")
        terminal.sends(BACK)
        terminal.wait_stopped()
        assert terminal.modes_now() == terminal.modes

        terminal.go_on()
        terminal.sends(ALTERNATE)
        terminal.shows("queues 1/1")
        terminal.type(b"q")
        assert terminal.wait() == 0


def test_one_frame_is_printed_as_text_and_as_json(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--queue", "jobs/b", "--storage", "memory:")
    istos_queue.out("enqueue", "jobs/a", "1")

    text = istos_queue.out("top", "--once", "--interval", "100ms")
    picture = orjson.loads(istos_queue.out("top", "jobs/a", "--json", "--interval", "100ms"))

    assert "jobs/a" in text
    assert "jobs/b" in text
    assert "\x1b" not in text
    (row,) = picture["queues"]
    assert {name: row[name] for name in ("queue", "state", "ready", "paused", "done_per_s")} == {
        "queue": "jobs/a",
        "state": "up",
        "ready": 1,
        "paused": False,
        "done_per_s": 0,
    }
    assert row["oldest_ready_s"] > 0
    assert picture["workers"] == []


def test_a_queue_that_refuses_to_tell_is_shown_with_the_reason(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:", "--authorize-token", "s3cr3t")

    refused = istos_queue.out("top", "--once", "--interval", "100ms")
    allowed = istos_queue.out("top", "--once", "--interval", "100ms", "--token", "s3cr3t")

    assert "unauthorized" in refused
    assert "queues 1/1" in allowed


def test_without_rich_it_names_the_extra(istos_queue: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)

    done = istos_queue("top", "--once")

    assert done.returncode == 2
    assert "istos-worker[rich]" in done.stderr


def test_without_a_terminal_it_says_how_to_get_one_frame(istos_queue: Commands) -> None:
    done = istos_queue("top")

    assert done.returncode == 2
    assert "--once" in done.stderr


def test_no_owner_is_told_with_the_exit_code_for_it(istos_queue: Commands) -> None:
    nobody = istos_queue("top", "--json", "--timeout", "200ms")
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")
    another = istos_queue("top", "jobs/b", "--json", "--timeout", "200ms")

    assert nobody.returncode == 6
    assert "nobody answers" in nobody.stderr
    assert another.returncode == 6
    assert orjson.loads(another.stdout)["queues"][0]["state"] == "gone"
