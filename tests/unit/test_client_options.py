"""Where the options of `istos-queue` come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from istos_worker.cli.options import parse_duration, parse_size
from istos_worker.cli.queue import queue, run
from istos_worker.cli.queue_ask import Asking
from istos_worker.cli.queue_serve import Served


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What `serve` was asked for."""
    seen: list[Served] = []

    def serve(asked: Served) -> int:
        seen.append(asked)
        return 0

    monkeypatch.setattr("istos_worker.cli.queue_serve._serve", serve)
    monkeypatch.chdir(tmp_path)

    def asked_for(*words: str) -> Served:
        assert run(("serve", *words)) == 0
        return seen.pop()

    return asked_for


def test_each_option_has_a_variable_of_its_name(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTOS_QUEUE_QUEUE", "jobs/a, jobs/b")
    monkeypatch.setenv("ISTOS_QUEUE_LEASE", "1m")
    monkeypatch.setenv("ISTOS_QUEUE_AUTHORIZE_TOKEN", "t=enqueue")
    monkeypatch.setenv("ISTOS_QUEUE_LISTEN", "tcp/127.0.0.1:7447 tcp/127.0.0.1:7448")
    monkeypatch.setenv("ISTOS_QUEUE_KEEP_RESULTS", "1")

    asked = served()

    assert asked.queues == ("jobs/a", "jobs/b")
    assert asked.lease_s == 60
    assert asked.tokens == ("t=enqueue",)
    assert asked.network.listen == ("tcp/127.0.0.1:7447", "tcp/127.0.0.1:7448")
    assert asked.keep_results is True


def test_the_command_line_beats_the_variable_and_that_the_table(
    served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.istos-worker]\nqueue = "jobs/t"\nlease = "1s"\nmax-attempts = 2\nresult-ttl = "9s"\nprocs = 8\n'
        'listen = ["tcp/127.0.0.1:1"]\n'
    )
    monkeypatch.setenv("ISTOS_QUEUE_LEASE", "2s")
    monkeypatch.setenv("ISTOS_QUEUE_MAX_ATTEMPTS", "3")
    monkeypatch.setenv("ISTOS_ZENOH_LISTEN_ENDPOINTS", "tcp/127.0.0.1:2")

    asked = served("--lease", "3s")

    assert (asked.lease_s, asked.max_attempts, asked.result_ttl_s) == (3.0, 3, 9.0)
    assert asked.queues == ("jobs/t",)
    assert asked.network.listen == ("tcp/127.0.0.1:2",)


@pytest.mark.parametrize("command", ["serve", "stats"])
def test_every_variable_is_named_after_its_option(command: str) -> None:
    for option in queue.commands[command].params:
        if isinstance(option, click.Option) and option.name not in ("help", "version"):
            longest = max(option.opts, key=len)
            assert option.envvar == f"ISTOS_QUEUE_{longest.strip('-').replace('-', '_').upper()}"


def test_a_command_that_asks_does_not_listen_where_the_owner_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Asking] = []

    def note(self: Asking, ask: Any) -> list[Any]:
        seen.append(self)
        return []

    monkeypatch.setattr(Asking, "__call__", note)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.istos-worker]\nlisten = "tcp/127.0.0.1:7447"\n')

    assert run(("workers", "jobs/a")) == 0

    assert seen[0]._network.listen == ()


def test_a_token_comes_from_a_file_or_the_nearer_source(
    served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("from-file\n")
    monkeypatch.setenv("ISTOS_QUEUE_TOKEN", "from-env")

    assert served("--queue", "a").token == "from-env"
    assert served("--queue", "a", "--token-file", "token").token == "from-file"
    assert run(("serve", "--queue", "a", "--token-file", "token", "--token", "t")) == 2
    assert run(("serve", "--queue", "a", "--token-file", "none")) == 2
    assert "from-env" not in repr(served("--queue", "a"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("250ms", 0.25), ("5m", 300), ("1.5h", 5400), ("2d", 172800)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64K", 65536), ("300M", 314572800), ("1.5G", 1610612736), ("1KiB", 1024)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "1 2", "nan"])
def test_nonsense_is_no_duration_and_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_duration(text)
    with pytest.raises(ValueError, match="not a"):
        parse_size(text)
