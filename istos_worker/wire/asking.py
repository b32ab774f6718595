"""What a request needs of a session: `wire.session.Session`, or a stand-in without network. Does not import zenoh."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Asks(Protocol):
    def ask(
        self,
        key: str,
        params: str = "",
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> asyncio.Future[bytes | None]:
        """The first reply, as it came; None when nobody is there. Raises TimeoutError."""
        ...
