"""One request to a queue's owner: repeated until an owner is there, and what kind of owner it is. Knows no
verbs' meanings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from istos_worker.errors import IstosError, NotFoundError, OwnerUnreachable
from istos_worker.wire.asking import Asks
from istos_worker.wire.bundle import SIZED
from istos_worker.wire.codec import decode_reply, encode_params
from istos_worker.wire.keys import BASE_VERBS, verb_key

Dialect = Literal["extended", "base"]
"""`base` is what peer 0.3's owner speaks."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_LONGEST_TRY_S = 3.0
"""Zenoh forgets a question now and then, when the owner it is on its way to is killed."""
_SHORTEST_TRY_S = 0.05
_PROBE_TRY_S = 2.0


class Request(NamedTuple):
    prefix: str
    verb: str
    params: str = ""
    payload: bytes | None = None
    attachment: bytes | None = None

    @property
    def key(self) -> str:
        return verb_key(self.prefix, self.verb)

    @classmethod
    def of(
        cls,
        prefix: str,
        verb: str,
        params: Mapping[str, object] | None = None,
        *,
        payload: bytes | None = None,
        attachment: bytes | None = None,
    ) -> Request:
        return cls(prefix, verb, encode_params(params) if params else "", payload, attachment)


def first_try_s(timeout_s: float) -> float:
    """How long to wait for the answer to a request that may be repeated."""
    return min(timeout_s, _LONGEST_TRY_S)


class Patience:
    """How long to go on, and how long to pause between tries. `silent_s` of it have passed in a try without an
    answer."""

    def __init__(self, timeout_s: float, *, silent_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self.timeout_s = timeout_s
        self._until = self._loop.time() + timeout_s - silent_s
        self._pause_s = _FIRST_PAUSE_S
        self.heard_silence = silent_s > 0
        """Somebody was there and did not answer, at least once."""

    @property
    def left_s(self) -> float:
        return self._until - self._loop.time()

    @property
    def try_s(self) -> float:
        return max(min(self.left_s, _LONGEST_TRY_S), _SHORTEST_TRY_S)

    def exhausted(self, prefix: str) -> OwnerUnreachable:
        return unreachable(prefix, self.timeout_s, heard_silence=self.heard_silence)

    async def pause(self) -> bool:
        """False when there is no time left to try again."""
        left_s = self.left_s
        if left_s <= 0:
            return False
        await asyncio.sleep(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


class Caller:
    """Sends requests and remembers, for each queue, which dialect its owner speaks."""

    def __init__(self, session: Asks) -> None:
        self._session = session
        self._dialects: dict[str, Dialect] = {}
        self._takes_sized: dict[str, bool] = {}
        self._probing: dict[str, asyncio.Task[Dialect | None]] = {}

    def takes_sized(self, prefix: str) -> bool:
        """Whether the owner, as it was seen last, takes bodies in the encoding `sized`."""
        return self._takes_sized.get(prefix, False)

    def known_dialect(self, prefix: str) -> Dialect | None:
        return self._dialects.get(prefix)

    def ask(self, request: Request, timeout_s: float) -> asyncio.Future[bytes | None]:
        """One try. None: nobody is there."""
        return self._session.ask(
            request.key,
            request.params,
            payload=request.payload,
            attachment=request.attachment,
            timeout_s=timeout_s,
        )

    async def call(self, request: Request, timeout_s: float, *, hold_s: float = 0.0) -> dict[str, Any]:
        """The reply to a request that may be repeated. `hold_s`: the owner was asked to wait that long.

        Raises OwnerUnreachable when no owner answers in `timeout_s` (plus `hold_s`), NotFoundError when the
        owner is a peer 0.3 that has no such verb, and the error that the owner answers with.
        """
        patience = Patience(timeout_s + hold_s)
        while True:
            raw = await self._patiently(request, patience, hold_s)
            if raw is not None:
                return decode_reply(raw)
            self.forget(request.prefix)
            dialect = await self.dialect(request.prefix, patience, request.attachment)
            if dialect == "base" and request.verb not in BASE_VERBS:
                raise NotFoundError(
                    f"the owner of {request.prefix!r} is an istos 0.3 node: it has no {request.verb!r}"
                )
            if not await patience.pause():
                raise patience.exhausted(request.prefix)

    async def _patiently(self, request: Request, patience: Patience, hold_s: float) -> bytes | None:
        try:
            return await self.ask(request, max(patience.try_s, min(hold_s, patience.left_s)))
        except TimeoutError:
            patience.heard_silence = True
            return None

    async def call_once(self, request: Request, timeout_s: float) -> dict[str, Any]:
        """The reply to a request that must not be repeated. Raises OwnerUnreachable, which then says that
        nothing is known."""
        try:
            raw = await self.ask(request, timeout_s)
        except TimeoutError:
            raw = None
        if raw is None:
            self.forget(request.prefix)
            raise OwnerUnreachable(
                f"the owner of {request.prefix!r}, an istos 0.3 node, did not answer {request.verb}: it may or "
                "may not have done it, and cannot be asked twice safely"
            )
        return decode_reply(raw)

    def forget(self, prefix: str) -> None:
        """Ask again what kind of owner is there, before the next request."""
        self._dialects.pop(prefix, None)

    async def dialect(self, prefix: str, patience: Patience, attachment: bytes | None) -> Dialect | None:
        """What the owner speaks; None when none answers right now. It tells more to whom it trusts."""
        known = self._dialects.get(prefix)
        if known is not None:
            return known
        probing = self._probing.get(prefix)
        if probing is None:
            probing = asyncio.ensure_future(
                self._probe(prefix, attachment, min(patience.try_s, _PROBE_TRY_S))
            )
            self._probing[prefix] = probing
            probing.add_done_callback(lambda _: self._probing.pop(prefix, None))
        return await asyncio.shield(probing)

    async def settled_dialect(self, prefix: str, patience: Patience, attachment: bytes | None) -> Dialect:
        """What the owner speaks, waiting for one. Raises OwnerUnreachable."""
        while True:
            found = await self.dialect(prefix, patience, attachment)
            if found is not None:
                return found
            if not await patience.pause():
                raise patience.exhausted(prefix)

    async def _probe(self, prefix: str, attachment: bytes | None, timeout_s: float) -> Dialect | None:
        found = await self._look(prefix, attachment, timeout_s)
        if found == "base":
            # An owner of ours that goes away between the two questions looks the same, once.
            found = await self._look(prefix, attachment, timeout_s)
        if found is not None:
            self._dialects[prefix] = found
        return found

    async def _look(self, prefix: str, attachment: bytes | None, timeout_s: float) -> Dialect | None:
        # Two questions that change nothing: our owners alone have `info`, peer 0.3 has `result`. Ours declares
        # `info` first and withdraws it last, and it is asked last: with `result` there, it is there too.
        # Any reply will do, an error too.
        asked = [
            Request.of(prefix, "result", {"job_id": "-"}, attachment=attachment),
            Request.of(prefix, "info", attachment=attachment),
        ]
        result, info = await asyncio.gather(
            *(self.ask(request, timeout_s) for request in asked), return_exceptions=True
        )
        if isinstance(info, bytes):
            self._takes_sized[prefix] = _tells_sized(info)
            return "extended"
        return "base" if info is None and isinstance(result, bytes) else None


def _tells_sized(info: bytes) -> bool:
    try:
        encodings = decode_reply(info).get("encodings")
    except IstosError:  # an owner of ours that does not want to tell us
        return False
    return isinstance(encodings, list) and SIZED in encodings


def unreachable(prefix: str, timeout_s: float, *, heard_silence: bool) -> OwnerUnreachable:
    if heard_silence:
        return OwnerUnreachable(
            f"the owner of queue {prefix!r} did not answer within {timeout_s:g} s: it is there, but "
            "overloaded or stuck"
        )
    return OwnerUnreachable(
        f"no owner of queue {prefix!r} answered within {timeout_s:g} s. Start one with "
        f"`istos-queue serve --queue {prefix}` (or a worker with --embedded), and see that both sides use the "
        "same --connect or --listen"
    )
