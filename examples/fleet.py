"""Starts `istos-worker` for an example, apart from everything else on this machine, and leaves nothing running."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from istos_worker.wire.settings import ZenohSettings

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
