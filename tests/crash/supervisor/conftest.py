"""Real fleets for the crash tests: start one, wait for events in its journal, end it, look for leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("program.py")
WITHIN_S = 20.0
QUICK = {"first_delay_s": 0.02, "max_delay_s": 0.05}

Event = dict[str, Any]


@dataclass
class Fleet:
    """One supervisor and what it started. The journal is the only thing looked at from outside."""

    directory: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, app: str = "", *, log: Any = None, **settings: Any) -> None:
        self.write_app(app)
        environment = {
            **os.environ,
            "SPT_NOENV": "1",  # or setproctitle writes over what `left_over` looks for
            "JOURNAL": str(self.journal),
            "APP": str(self.directory / "app.py"),
            "FLEET": json.dumps({"procs": 1, "restarts": QUICK, **settings}),
        }
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), "supervisor"],
                env=environment,
                stdout=file,
                stderr=log if log is not None else file,
                start_new_session=True,
            )

    def write_app(self, source: str) -> None:
        (self.directory / "app.py").write_text(source)

    def busy(self, is_busy: bool = True) -> None:
        marker = self.directory / "BUSY"
        marker.touch() if is_busy else marker.unlink()

    def events(self, event: str | None = None, **facts: Any) -> list[Event]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        found = [json.loads(line) for line in lines]
        wanted = {**facts, **({} if event is None else {"event": event})}
        return [one for one in found if wanted.items() <= one.items()]

    def wait(self, event: str, *, count: int = 1, **facts: Any) -> Event:
        """The `count`th such event."""
        self.until(lambda: len(self.events(event, **facts)) >= count, what=f"{count} {event} {facts}")
        return self.events(event, **facts)[count - 1]

    def wait_log(self, text: str) -> None:
        self.until(lambda: text in self.log_text(), what=f"{text!r} in the log")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], bool], *, what: str) -> None:
        give_up_at = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > give_up_at:
                pytest.fail(f"no {what} within {WITHIN_S} s\n{self.log_text()}\n{self.events()}")
            time.sleep(0.01)

    def suspend(self, for_s: float, *, monotonic_runs: bool) -> None:
        """Every clock of every process of the fleet at once, as after a suspend of the machine."""
        clocks = self.directory / "CLOCKS"
        written = clocks.with_suffix(".new")
        written.write_text(f"{for_s if monotonic_runs else 0.0} {for_s}")
        written.replace(clocks)

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def signal_group(self, signum: int) -> None:
        os.killpg(self.pid, signum)

    def ends(self, code: int) -> None:
        """With that exit code, and nothing is left running."""
        try:
            actual = self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the supervisor did not end\n{self.log_text()}\n{self.events()}")
        self.nothing_left()
        assert actual == code, self.log_text()

    def nothing_left(self) -> None:
        self.until(lambda: not self.left_over(), what="end of all processes")

    def left_over(self) -> list[int]:
        """Everything of this fleet that still runs: all carry the journal's path in their environment."""
        return [pid for pid in _pids() if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            return f"JOURNAL={self.journal}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
                b"\0"
            )
        except OSError:
            return False

    def clean_up(self) -> None:
        if hasattr(self, "process") and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    one = Fleet(tmp_path)
    yield one
    one.clean_up()
