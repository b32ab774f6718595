"""Ask a running supervisor something. Plain sockets; for command lines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any


class NotRunning(ConnectionError):  # noqa: N818
    """Nobody listens at that path."""


def ask(path: Path, command: str, *, wait_s: float | None = 10.0, **arguments: Any) -> dict[str, Any]:
    """The supervisor's answer, always with `"ok"`. Raises NotRunning, TimeoutError, OSError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(wait_s)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotRunning(f"no supervisor listens at {path}") from error
        sock.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
        line = sock.makefile("rb").readline()
    if not line:
        raise NotRunning(f"the supervisor at {path} left before it answered")
    answer: dict[str, Any] = json.loads(line)
    return answer
