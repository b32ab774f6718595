"""`istos-queue` as its users run it: an owner process, and commands that ask it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import orjson
import pytest

from tests.fixtures.queue_commands import Commands


def test_jobs_go_in_and_are_looked_at(istos_queue: Commands) -> None:
    owner = istos_queue.serve("--queue", "jobs/a", "--queue", "jobs/b", "--max-attempts", "1")

    job_id = istos_queue.out("enqueue", "jobs/a", '{"to": "a@b.c"}', "--delay", "10m")
    lines = istos_queue.out("enqueue", "jobs/a", "-", stdin="1\n\n2\n3\n")
    stats = istos_queue.json("stats", "jobs/a", "jobs/b")

    assert lines == "3 jobs enqueued on jobs/a"
    assert stats["jobs/a"]["counts"]["ready"] == 3
    assert stats["jobs/a"]["counts"]["delayed"] == 1
    assert stats["jobs/b"]["counts"]["ready"] == 0
    assert re.search(r"jobs/a +3 +1", istos_queue.out("stats", "jobs/a"))
    assert "may start" in istos_queue.out("why", "jobs/a", job_id)
    assert istos_queue.json("result", "jobs/a", job_id) == {"state": "ready", "result": None}
    assert istos_queue.out("cancel", "jobs/a", job_id) == "cancelled"
    assert istos_queue("result", "jobs/a", job_id, "--wait", "1s").returncode == 1
    assert istos_queue.out("pause", "jobs/a") == "jobs/a is paused"
    assert istos_queue.out("resume", "jobs/a") == "jobs/a delivers again"
    assert istos_queue.json("workers", "jobs/a") == []
    assert istos_queue.json("dead", "list", "jobs/a") == []

    owner.send_signal(signal.SIGTERM)
    assert owner.wait(timeout=10) == 0


def test_a_duplicate_is_told(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    first = istos_queue("enqueue", "jobs/a", "1", "--job-id", "mine")
    again = istos_queue("enqueue", "jobs/a", "1", "--job-id", "mine")
    held = istos_queue.json("enqueue", "jobs/a", "1", "--unique-key", "invoice-7")
    taken = istos_queue.json("enqueue", "jobs/a", "2", "--unique-key", "invoice-7")

    assert (first.returncode, first.stdout, first.stderr) == (0, "mine\n", "")
    assert (again.returncode, again.stdout) == (0, "mine\n")
    assert again.stderr == "duplicate: nothing enqueued, jobs/a has this job already\n"
    assert held["duplicate"] is False
    assert taken == {"job_id": held["job_id"], "duplicate": True}
    assert istos_queue.json("stats", "jobs/a")["jobs/a"]["counts"]["ready"] == 2


@pytest.mark.parametrize("command", ["result", "why"])
def test_a_job_that_is_not_known_is_told_and_exits_with_1(istos_queue: Commands, command: str) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    plain = istos_queue(command, "jobs/a", "no-such-id")
    as_json = istos_queue(command, "jobs/a", "no-such-id", "--json")

    assert (plain.returncode, plain.stdout) == (1, "")
    assert re.fullmatch(r"istos-queue: jobs/a.*job no-such-id.*never was.*\n", plain.stderr)
    assert (as_json.returncode, as_json.stderr) == (1, plain.stderr)
    assert orjson.loads(as_json.stdout)["state"] == "unknown"


def test_jobs_survive_the_owner(istos_queue: Commands) -> None:
    first = istos_queue.serve("--queue", "jobs/a")
    istos_queue.out("enqueue", "jobs/a", "1")
    first.kill()
    first.wait()

    istos_queue.serve("--queue", "jobs/a")

    assert istos_queue.json("stats", "jobs/a")["jobs/a"]["counts"]["ready"] == 1
    assert (istos_queue.folder / "istos-data" / "queues.db").exists()


def test_dead_letters_are_exported_requeued_and_purged(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")
    for number in range(3):
        istos_queue.out("enqueue", "jobs/a", str(number), "--expires", "1ms")
    while istos_queue.json("stats", "jobs/a")["jobs/a"]["counts"]["dead"] < 3:
        pass

    exported = istos_queue.out("dead", "export", "jobs/a").splitlines()
    ids = [orjson.loads(line)["job_id"] for line in exported]

    assert [orjson.loads(line)["data"] for line in exported] == [0, 1, 2]
    assert istos_queue.out("dead", "requeue", "jobs/a", ids[0]) == "1 requeued"
    assert istos_queue("dead", "requeue", "jobs/a", "unknown").returncode == 1
    assert istos_queue.out("dead", "purge", "jobs/a", "--all") == "2 purged"
    assert istos_queue("dead", "purge", "jobs/a").returncode == 2


def test_a_target_is_served_with_its_own_settings(istos_queue: Commands) -> None:
    (istos_queue.folder / "shop.py").write_text(
        "from istos_worker import App\napp = App()\napp.queue('jobs/a', max_attempts=9)\napp.queue('jobs/b')\n"
        "app.schedule('jobs/b', 1, every_s=3600, initial_delay_s=0)\n"
    )
    istos_queue.serve("shop", "--storage", "memory:")

    job_id = istos_queue.out("enqueue", "jobs/a", "1")

    assert istos_queue.json("result", "jobs/a", job_id)["state"] == "ready"
    while istos_queue.json("stats", "jobs/b")["jobs/b"]["counts"]["ready"] == 0:
        pass  # the schedule's first tick


def test_tokens_are_asked_for_and_never_shown(istos_queue: Commands) -> None:
    (istos_queue.folder / "tokens").write_text("from-file=enqueue\n")
    owner = istos_queue.serve(
        "--queue", "jobs/a", "--authorize-token", "top-secret", "--authorize-token-file", "tokens"
    )
    title = Path(f"/proc/{owner.pid}/cmdline").read_bytes()

    refused = istos_queue("enqueue", "jobs/a", "1")

    assert refused.returncode == 1
    assert "unauthorized" in refused.stderr
    assert istos_queue.out("enqueue", "jobs/a", "1", "--token", "top-secret")
    assert istos_queue.out("enqueue", "jobs/a", "1", "--token", "from-file")
    assert istos_queue("pause", "jobs/a", "--token", "from-file").returncode == 1
    assert b"top-secret" not in title
    assert b"***" in title


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("serve",), 2, "TARGET"),
        (("serve", "no_such_module_here"), 4, "no_such_module_here"),
        (("serve", "broken"), 4, "ZeroDivisionError"),
        (("serve", "--queue", "a*"), 2, "not valid"),
        (("serve", "--queue", "a", "--storage", "tape:"), 1, "tape"),
        (("serve", "--queue", "a", "--storage", "sqlite:////proc/no/q.db"), 1, "/proc/no/q.db"),
        (("serve", "--queue", "a", "--listen", "nonsense"), 2, "nonsense"),
        (("serve", "--queue", "a", "--lease", "soon"), 2, "soon"),
        (("stats", "jobs/a", "--timeout", "200ms"), 6, "nobody answers"),
        (("enqueue", "jobs/a", "{"), 2, "not JSON"),
        (("enqueue", "jobs/a", "-"), 2, "line 2"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_mistakes_are_told_in_one_message_without_our_traceback(
    istos_queue: Commands, words: tuple[str, ...], code: int, told: str
) -> None:
    (istos_queue.folder / "broken.py").write_text("1 / 0\n")
    if "-" in words:
        istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    done = istos_queue.as_process(*words) if words[0] == "serve" else istos_queue(*words, stdin="1\n{\n")

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "istos_worker/" not in done.stderr


def test_a_port_in_use_is_told(istos_queue: Commands) -> None:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:")

    done = istos_queue.as_process(
        "serve", "--queue", "jobs/b", "--storage", "memory:", "--listen", istos_queue.endpoint
    )

    assert done.returncode == 1
    assert "in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1
