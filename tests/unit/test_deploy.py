"""What stands in deploy/ is what the commands take."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from istos_worker.cli.queue import queue
from istos_worker.cli.worker_command import run

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def commands_in(manifest: str) -> list[list[str]]:
    """The `command: [...]` lists of a manifest."""
    lists = re.findall(r"command: \[(.*?)\]", manifest, re.DOTALL)
    return [[word.strip().strip('"') for word in one.split(",")] for one in lists]


@pytest.mark.parametrize(
    "words", commands_in((DEPLOY / "kubernetes.yaml").read_text()), ids=lambda words: " ".join(words[:2])
)
def test_every_option_in_the_manifest_exists(words: list[str]) -> None:
    program, *rest = words
    command: click.Command = run
    if program == "istos-queue":
        command = queue.commands[rest.pop(0)]
    known = {name for param in command.params for name in param.opts}

    assert {word for word in rest if word.startswith("--")} <= known


def test_an_owner_that_other_machines_reach_has_tokens() -> None:
    serving = [one for one in commands_in((DEPLOY / "kubernetes.yaml").read_text()) if "serve" in one]

    assert serving
    assert all("--authorize-token-file" in one for one in serving if "tcp/0.0.0.0:7447" in one)
