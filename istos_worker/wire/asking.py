"""What a request needs of a session, and what it is for whoever answers it. `wire.session.Session` has both, and so has
a stand-in without network. Does not import zenoh."""

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


class Query(Protocol):
    """A question that waits for our one reply."""

    @property
    def payload(self) -> bytes: ...

    @property
    def attachment(self) -> bytes | None: ...

    @property
    def local_name(self) -> str | None:
        """The name of the local socket at which the same is served, where there is one."""
        ...

    def reply(self, payload: bytes, /) -> None:
        """Answers once; a second call does nothing. A caller that is gone is not an error."""
        ...

    def drop(self) -> None:
        """The caller sees that nobody answered."""
        ...


class Incoming(Query, Protocol):
    """As it comes in at a key that a session serves."""

    @property
    def key(self) -> str: ...

    @property
    def params(self) -> str: ...

    @property
    def is_exact(self) -> bool:
        """False when the caller asked a pattern of keys, ours among them."""
        ...
