"""What each verb means: a query's bytes to a call on the state machine, and its answer to a reply
(docs/protocol.md). Nothing here trusts its input; knows no session and no loop.

`VERB_RUNS` has one function per verb. It returns the reply, or None when the call was parked and
`Call.deliver` will answer it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from istos_worker.errors import IstosError
from istos_worker.queue import role_admin, role_delivery, role_enqueue
from istos_worker.queue.records import Instant
from istos_worker.wire.asking import Query
from istos_worker.wire.codec import encode_error, encode_reply
from istos_worker.wire.limits import Limits

if TYPE_CHECKING:
    from istos_worker.queue.state import QueueState

log = logging.getLogger(__name__)

Reply = Mapping[str, Any]


_BRINGING_JOBS = frozenset(("enqueue", "enqueue_many"))


class Call:
    """One query on its way through a turn: an Operation for the store, and the waiter when it is parked."""

    __slots__ = ("_parked", "_reply", "_run", "_shape", "limits", "params", "query", "verb")

    def __init__(
        self, verb: str, query: Query, params: Mapping[str, str], limits: Limits, parked: set[Call]
    ) -> None:
        self.verb = verb
        self.query = query
        self.params = params
        self.limits = limits
        self._run = VERB_RUNS[verb]
        self._parked = parked
        self._reply: Reply | None = None
        self._shape: Callable[[Any], Reply] = role_admin.result_reply

    def apply(self, state: QueueState, now: Instant) -> None:
        try:
            self._reply = self._run(self, state, now)
        except IstosError:
            raise
        except Exception as unforeseen:
            log.exception("%s failed in an unforeseen way", self.verb)
            raise IstosError(f"the owner failed on {self.verb}; its log has the reason") from unforeseen

    @property
    def only_brings_jobs(self) -> bool:
        return self.verb in _BRINGING_JOBS

    @property
    def is_parked(self) -> bool:
        return self._reply is None

    def done(self) -> None:
        if self._reply is None:
            self._parked.add(self)
        else:
            self._answer(self._reply)

    def failed(self, error: IstosError) -> None:
        self._parked.discard(self)
        self.query.reply(encode_error(error))

    def deliver(self, answer: Any) -> None:
        """What a parked call waited for."""
        self._parked.discard(self)
        self._answer(self._shape(answer))

    def _answer(self, reply: Reply) -> None:
        try:
            raw = encode_reply(reply)
        except TypeError:  # never expected; but no query is left without an answer
            log.exception("the reply to %s cannot be encoded", self.verb)
            raw = encode_error(IstosError("the owner's reply cannot be encoded; see its log"))
        self.query.reply(raw)

    def parked_as(self, shape: Callable[[Any], Reply]) -> Call:
        """This call as a waiter whose answer will have `shape`."""
        self._shape = shape
        return self


VERB_RUNS: dict[str, Callable[[Call, QueueState, Instant], Reply | None]] = {
    "info": role_admin.info,  # first: whoever sees any verb of ours can see this one (client/calls.py)
    "enqueue": role_enqueue.enqueue,
    "enqueue_many": role_enqueue.enqueue_many,
    "claim": role_delivery.claim,
    "ack": role_delivery.ack,
    "nack": role_delivery.nack,
    "release": role_delivery.release,
    "extend": role_delivery.extend,
    "settle": role_delivery.settle,
    "result": role_admin.result,
    "dead": role_admin.dead,
    "chord": role_admin.chord,
    "stats": role_admin.stats,
    "cancel": role_admin.cancel,
    "pause": role_admin.pause,
    "resume": role_admin.resume,
    "requeue": role_admin.requeue,
    "purge": role_admin.purge,
    "bury": role_admin.bury,
    "why": role_admin.why,
    "workers": role_admin.workers,
    "tick": role_admin.tick,
}
