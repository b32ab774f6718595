"""This worker's line to the owner of its queue: asks, and tells an outage from an answer. Knows no jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, Protocol

from istos_worker.errors import ForbiddenError, IstosError, UnauthorizedError
from istos_worker.wire.asking import Asks
from istos_worker.wire.codec import decode_reply, encode_params
from istos_worker.wire.envelope import Envelope
from istos_worker.wire.keys import verb_key
from istos_worker.worker.settings import WorkerSettings

Dialect = Literal["istos-worker", "peer 0.3"]
_PROBE_S = 2.0


class Undeclarable(Protocol):
    def undeclare(self) -> None: ...


class Mesh(Asks, Protocol):
    """What a worker needs of a session: `wire.session.Session`, or a stand-in without network."""

    def subscribe(self, key: str, take: Callable[[list[bytes]], None]) -> Undeclarable: ...

    def declare_token(self, key: str) -> Undeclarable: ...


class OwnerLost(Exception):  # noqa: N818 - a state of the world
    """No owner serves this worker now. `refused`: one is there and will not, which asking again soon will not
    change."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class OwnerLink:
    def __init__(self, session: Asks, settings: WorkerSettings) -> None:
        self._session = session
        self.prefix = settings.prefix
        self._token = settings.token
        self._timeout_s = settings.request_timeout_s
        self._attachment = Envelope(token=settings.token).encode()

    def send(
        self, verb: str, params: str = "", *, payload: bytes | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[bytes | None]:
        """Raises OwnerLost when the session itself is gone."""
        try:
            return self._session.ask(
                verb_key(self.prefix, verb),
                params,
                payload=payload,
                attachment=self._attachment,
                timeout_s=timeout_s or self._timeout_s,
            )
        except Exception as refused:  # Zenoh's own errors: the session is closed
            raise OwnerLost(f"the session cannot send: {refused}") from refused

    async def ask(self, verb: str, params: str = "", *, payload: bytes | None = None) -> dict[str, Any]:
        """The reply. Raises OwnerLost, or the IstosError that the owner answers with."""
        return await self.answer(self.send(verb, params, payload=payload))

    async def answer(self, asked: asyncio.Future[bytes | None]) -> dict[str, Any]:
        try:
            raw = await asked
        except TimeoutError:
            raise OwnerLost(f"the owner of {self.prefix!r} does not answer") from None
        return self.read(raw)

    def read(self, raw: bytes | None) -> dict[str, Any]:
        if raw is None:
            raise OwnerLost(f"no owner of {self.prefix!r} is there")
        return decode_reply(raw)

    async def forward(
        self,
        prefix: str,
        verb: str,
        params: dict[str, object],
        payload: bytes,
        *,
        correlation_id: str | None = None,
        traceparent: str | None = None,
    ) -> dict[str, Any]:
        """A request to any queue, on behalf of a job. Raises OwnerLost or IstosError."""
        envelope = Envelope(token=self._token, correlation_id=correlation_id, traceparent=traceparent)
        asked = self._session.ask(
            verb_key(prefix, verb),
            encode_params(params),
            payload=payload,
            attachment=envelope.encode(),
            timeout_s=self._timeout_s,
        )
        return await self.answer(asked)

    async def probe(self) -> Dialect:
        """What the owner speaks. Raises OwnerLost when there is none, or it refuses us."""
        try:
            if await self._knows("info"):
                return "istos-worker"
            # Peer 0.3 has no `info`, but answers `result` for any id. An owner of ours may come up between two
            # questions, or restart: hence both twice.
            for _ in range(2):
                if not await self._knows("result", "job_id=-"):
                    break
                if await self._knows("info"):
                    return "istos-worker"
            else:
                return "peer 0.3"
        except (UnauthorizedError, ForbiddenError) as refused:
            raise refusal(refused) from refused
        raise OwnerLost(f"no owner of {self.prefix!r} is there")

    async def _knows(self, verb: str, params: str = "") -> bool:
        try:
            raw = await self.send(verb, params, timeout_s=_PROBE_S)
        except TimeoutError:
            raise OwnerLost(f"the owner of {self.prefix!r} does not answer") from None
        if raw is None:
            return False
        try:
            decode_reply(raw)
        except UnauthorizedError:
            raise
        except IstosError:  # it knows the verb, if only to refuse it
            return True
        return True


def refusal(error: IstosError) -> OwnerLost:
    """An error reply to a claim or a settle as a whole."""
    refused = isinstance(error, (UnauthorizedError, ForbiddenError))
    return OwnerLost(f"the owner answers {error.code}: {error.message}", refused=refused)
