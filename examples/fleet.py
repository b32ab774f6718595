"""Starts `istos-worker` for an example, apart from everything else on this machine, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from istos_worker.wire.settings import ZenohSettings

T = TypeVar("T")

STOP_WITHIN_S = 40.0


class Fleet:
    """`with Fleet("examples.index_sources", folder, "--procs", "2") as fleet:`; its log is in `folder`."""

    def __init__(self, target: str, folder: Path, *options: str) -> None:
        # A namespace of its own: two demos at the same time do not meet.
        self.network = ZenohSettings(namespace=f"demo-{secrets.token_hex(4)}")
        self.log = folder / "fleet.log"
        self._command = [
            *(sys.executable, "-m", "istos_worker.cli.worker", target, "--embedded"),
            *("--data", str(folder / "data"), "--namespace", str(self.network.namespace), *options),
        ]
        self.exit_code = 0

    def __enter__(self) -> Self:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ISTOS_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env=environ)
        return self

    async def while_running(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises SystemExit when the fleet ends before it."""
        task = asyncio.ensure_future(work)
        while not task.done():
            if self.process.poll() is not None:
                task.cancel()
                raise SystemExit(f"the fleet has ended with code {self.process.returncode}")
            await asyncio.wait((task,), timeout=0.2)
        return task.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(STOP_WITHIN_S)
        finally:
            self.process.kill()
        if error is not None or self.exit_code:
            sys.stderr.write(self.log.read_text(errors="replace"))
