"""What README.md and docs/quickstart.md show is run as it is written there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.fixtures.fleets import Fleets
from tests.fixtures.programs import ROOT, clean_env

README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def command_lines(text: str = README) -> list[list[str]]:
    return [
        shlex.split(line, comments=True)
        for block in blocks("sh", text)
        for line in block.splitlines()
        if line
    ]


def run_queue_command(fleet: Fleets, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "istos_worker.cli.queue", *words],
        env=clean_env(fleet.runtime, ISTOS_QUEUE_NAMESPACE=str(fleet.network.namespace)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quickstart_works_as_written(fleet: Fleets) -> None:
    tasks, producer = blocks("python")
    fleet.write("tasks", tasks)
    (start,) = [words for words in command_lines() if words[0] == "istos-worker" and "--check" not in words]

    program = fleet.start(*start[1:], env={"PYTHONUNBUFFERED": "1"})
    program.until_serving(2)
    job_ids = []
    for words in command_lines():
        if words[0] == "istos-queue" and words[1] in ("enqueue", "stats"):
            job_ids.append(run_queue_command(fleet, *words[1:]).strip())
    program.until(lambda: "to ada@example.org, attempt 1" in program.out, "output of the handler")

    assert "done" in run_queue_command(fleet, "why", "jobs/email", job_ids[0].split()[-1])
    run_queue_command(fleet, "dead", "list", "jobs/email")
    assert run_producer(fleet, producer) == {"state": "done", "result": "sent"}
    assert program.stop() == 0


def run_producer(fleet: Fleets, source: str) -> object:
    """The README's producer, in a process of its own."""
    script = source.replace("print(await", "print(__import__('json').dumps(await").replace(
        "wait_s=10))", "wait_s=10)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import asyncio\n{script}\nasyncio.run(main())"],
        env=clean_env(
            fleet.runtime, ISTOS_ZENOH_ADDITIONAL_CONFIG=json.dumps({"namespace": fleet.network.namespace})
        ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_check_that_the_readme_shows_prints_the_deadlines(fleet: Fleets) -> None:
    fleet.write("tasks", blocks("python")[0])
    (check,) = [words for words in command_lines() if "--check" in words]
    program = fleet.start(*check[1:])
    assert program.wait() == 0, program.log
    assert "the platform must wait longer than 29s" in program.out


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    path = ROOT / page
    for target in LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_the_make_targets_that_the_readme_shows_exist() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z]+)", README, flags=re.MULTILINE)) <= known
