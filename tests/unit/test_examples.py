"""Each example runs with one command, prints what it promises, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent.parent


def run_example(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = [
        child for child in psutil.Process().children(recursive=True) if module in " ".join(child.cmdline())
    ]
    assert left == []
    return done.stdout


def test_index_sources_prints_its_report() -> None:
    shown = run_example("examples.index_sources", "--limit", "120")
    assert "120 files" in shown
    assert "functions" in shown
    assert "jobs/s" in shown
    assert "worker 0:" in shown


def test_deliver_webhooks_delivers_every_event_after_two_refusals() -> None:
    shown = run_example("examples.deliver_webhooks")
    assert "50 events delivered in 150 tries, 1 given up" in shown


def test_sync_producer_enqueues_without_an_event_loop() -> None:
    assert "'state': 'done', 'result': 'hello ada'" in run_example("examples.sync_producer")
