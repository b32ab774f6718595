"""Claims and outcomes against an owner of ours, in as few trips as possible (docs/worker.md, "Pump")."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import orjson

from istos_worker.errors import BadRequestError, IstosError, PayloadTooLargeError
from istos_worker.wire.codec import encode_params, encode_tasks
from istos_worker.worker.delivery import Delivery
from istos_worker.worker.link import OwnerLost, refusal
from istos_worker.worker.outbox import Entry
from istos_worker.worker.outcomes import Released, as_wire
from istos_worker.worker.prefetch import Prefetch
from istos_worker.worker.workplace import Workplace

log = logging.getLogger(__name__)
_GATHER_S = 0.003
_NEARLY_S = 0.001
_SOON_S = 0.005
_HOLD_S = 0.1
_LEAVING_S = 0.5
_MAX_CLAIM = 1000
_MAX_BATCH = 1000


class ClaimNumbers:
    """The `seq` of a worker's claims. Outlives outages: an unanswered claim is repeated under its number."""

    def __init__(self) -> None:
        self._last = 0
        self.unanswered = False

    def next(self) -> int:
        if not self.unanswered:
            self._last += 1
            self.unanswered = True
        return self._last

    def above(self) -> int:
        """A number above that of the claim under way, which the owner then answers."""
        return self._last + 1

    def superseded(self) -> None:
        """The owner has heard of that number. Until then a claim that is lost is repeated under its own."""
        self._last += 1
        self.unanswered = False


class SettlePump:
    def __init__(
        self, place: Workplace, *, prefetch: Prefetch, numbers: ClaimNumbers, tasks: tuple[str, ...] | None
    ) -> None:
        self._settings = settings = place.settings
        self._link = place.link
        self._slots = place.slots
        self._outbox = place.outbox
        self._gate = place.gate
        self._on_ready = place.on_ready
        self._prefetch = prefetch
        self._numbers = numbers
        static: dict[str, object] = {"worker": settings.worker_id}
        if tasks is not None:
            static["tasks"] = encode_tasks(tasks)
        self._static = encode_params(static)
        self._wake = asyncio.Event()
        self._parked: asyncio.Future[bytes | None] | None = None
        self._settling: asyncio.Future[bytes | None] | None = None
        self._failure: Exception | None = None
        """Of a reply: what ends `run`."""
        self._ripe = False
        self._ripening: asyncio.TimerHandle | None = None
        self._most = _MAX_BATCH

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until the drain is complete. Raises OwnerLost; outcomes and an unanswered claim are then kept."""
        self._failure = None
        try:
            await self._begin()
            while not self._is_finished():
                if not self._is_due():
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._stop_ripening()
                await self._act()
        finally:
            self._stop_ripening()
            if self._settling is not None:
                self._settling.cancel()
                self._settling = None

    def _is_finished(self) -> bool:
        return (
            self._gate.draining
            and self._slots.idle
            and not self._outbox
            and self._parked is None
            and not self._numbers.unanswered
        )

    def _is_due(self) -> bool:
        if self._failure is not None:
            return True
        if self._settling is not None:
            return False
        if len(self._outbox):
            return self._outcomes_due()
        if self._parked is not None:
            return not self._gate.open
        if not self._gate.open:
            return self._numbers.unanswered
        return self._numbers.unanswered or (self._slots.free > 0 and self._claim_due())

    def _outcomes_due(self) -> bool:
        if not self._gate.open or len(self._outbox) >= self._most:
            return True
        if self._slots.is_fed():
            return self._ripens(_GATHER_S)
        return not self._is_nearly_done() or self._ripens(_NEARLY_S)

    def _is_nearly_done(self) -> bool:
        """All that was claimed will have run so soon that its outcomes can go along."""
        slots, typical_s = self._slots, self._prefetch.typical_s
        if slots.idle or typical_s is None:
            return False
        return typical_s * (1 + slots.waiting / self._settings.concurrency) < _NEARLY_S

    def _claim_due(self) -> bool:
        """A claim is parked at once, unless running jobs are about to finish: they then bring it along."""
        if self._slots.wanted() == 0:
            return False
        typical_s = self._prefetch.typical_s
        if self._slots.idle or typical_s is None or typical_s > _SOON_S:
            return True
        return self._ripens(_SOON_S)

    def _ripens(self, after_s: float) -> bool:
        if not self._ripe and self._ripening is None:
            self._ripening = asyncio.get_running_loop().call_later(after_s, self._ripened)
        return self._ripe

    def _stop_ripening(self) -> None:
        self._ripe = False
        if self._ripening is not None:
            self._ripening.cancel()
            self._ripening = None

    def _ripened(self) -> None:
        self._ripening = None
        self._ripe = True
        self._wake.set()

    async def _act(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._parked is not None and not self._gate.open:
            await self._withdraw()
        elif len(self._outbox):
            self._exchange()
        elif self._gate.open:
            self._park()
        else:  # the reply to a claim was lost: only asking again tells whether it brought jobs
            await self._ask_again()

    def _exchange(self) -> None:
        batch = self._outbox.next_batch(self._most)
        try:
            payload = orjson.dumps(
                {"outcomes": [as_wire(d.job_id, d.attempt, d.fence, outcome) for d, outcome in batch]}
            )
        except (TypeError, ValueError) as unspeakable:  # it must not hold up all others for ever
            self._isolate(batch, BadRequestError(f"it cannot be sent: {unspeakable}"))
            return
        claims = 0
        if self._parked is None and self._gate.open:
            # A claim whose reply was lost is repeated whether or not a slot is free: it may have brought jobs.
            claims = min(max(self._slots.wanted(), self._numbers.unanswered), _MAX_CLAIM)
        # With nothing running no outcome can come meanwhile, so the owner may hold the reply for the next jobs:
        # one trip less for every batch of a live producer.
        hold_s = _HOLD_S if self._slots.idle else 0.0
        params = self._claim_params(claims, hold_s) if claims else self._static
        self._settling = self._link.send("settle", params, payload=payload)
        self._settling.add_done_callback(partial(self._on_settled, batch, claims))

    def _on_settled(self, batch: list[Entry], claims: int, asked: asyncio.Future[bytes | None]) -> None:
        if asked is not self._settling:  # nobody waits for it any more
            return
        self._settling = None
        try:
            reply = self._reply_to(asked)
            if claims:
                self._numbers.unanswered = False
            self._most = _MAX_BATCH
            self._outbox.confirmed(batch, _answers(reply, len(batch)))
            self._accept(reply.get("jobs") or ())
        except (BadRequestError, PayloadTooLargeError) as refused:
            self._isolate(batch, refused)
        except Exception as failure:
            self._failed(failure)
        finally:
            self._wake.set()  # after the jobs: they start first

    def _failed(self, failure: Exception) -> None:
        self._failure = refusal(failure) if isinstance(failure, IstosError) else failure

    def _reply_to(self, asked: asyncio.Future[bytes | None]) -> dict[str, Any]:
        """Raises OwnerLost, or the IstosError that the owner answers with."""
        if asked.cancelled() or asked.exception() is not None:
            raise OwnerLost(f"the owner of {self._settings.prefix!r} does not answer")
        return self._link.read(asked.result())

    def _isolate(self, batch: list[Entry], refused: IstosError) -> None:
        """One outcome of many may be what the owner refuses: they then go one by one."""
        if len(batch) > 1:
            self._most = 1
            return
        self._outbox.refused(batch[0], refused.code, refused.message)

    def _claim_params(self, n: int, wait_s: float = 0.0) -> str:
        waiting = f";wait={wait_s:g}" if wait_s else ""
        return f"n={n}{waiting};seq={self._numbers.next()};{self._static}"

    def _park(self) -> None:
        wait_s = self._settings.wait_s
        params = self._claim_params(min(max(self._slots.wanted(), 1), _MAX_CLAIM), wait_s)
        timeout_s = wait_s + self._settings.request_timeout_s
        self._parked = self._link.send("claim", params, timeout_s=timeout_s)
        self._parked.add_done_callback(self._on_claimed)

    def _on_claimed(self, asked: asyncio.Future[bytes | None]) -> None:
        self._parked = None
        try:
            if asked.cancelled():
                return
            reply = self._reply_to(asked)
            self._numbers.unanswered = False
            self._accept(reply.get("jobs") or ())
        except Exception as failure:
            self._failed(failure)
        finally:
            self._wake.set()  # after the jobs: they start first

    async def _withdraw(self) -> None:
        """Ends the parked claim by an empty one; `_on_claimed` takes what it brings."""
        parked = self._parked
        if parked is None:
            return
        params = f"n=0;seq={self._numbers.above()};{self._static}"
        # An idle worker that is to leave does not wait for an owner that is stuck: what its claim may bring
        # goes back when its token is gone.
        is_leaving = self._gate.draining and self._slots.idle
        try:
            async with asyncio.timeout(_LEAVING_S if is_leaving else self._settings.request_timeout_s):
                await self._link.ask("claim", params)
                await asyncio.wait((parked,))
        except TimeoutError:
            log.debug("the parked claim of %s was not answered after its withdrawal", self._settings.prefix)
        except IstosError as refused:
            raise refusal(refused) from refused
        if self._parked is parked:
            parked.remove_done_callback(self._on_claimed)
            self._parked = None
        if self._failure is None:
            self._numbers.superseded()

    async def _ask_again(self) -> None:
        try:
            reply = await self._link.ask("claim", self._claim_params(1))
        except IstosError as refused:
            raise refusal(refused) from refused
        self._numbers.unanswered = False
        self._accept(reply.get("jobs") or ())

    def _accept(self, jobs: Any) -> None:
        if not jobs:
            return
        if type(jobs) is not list:
            raise OwnerLost(
                f"the owner of {self._settings.prefix!r} sent something else than jobs: {jobs!r:.200}"
            )
        now = time.monotonic()
        prefix = self._settings.prefix
        deliveries = [Delivery(prefix, job, now) for job in jobs if _is_job(job)]
        if self._gate.open:
            self._slots.offer(deliveries)
            return
        for delivery in deliveries:
            self._outbox.add(delivery, Released())

    async def _begin(self) -> None:
        """Finds out whether claims are taken, by an empty one, and what became of the jobs held here."""
        try:
            await self._link.ask("claim", f"n=0;{self._static}")
        except IstosError as refused:
            raise refusal(refused) from refused
        if self._slots.held():
            await self._reconcile()
        self._on_ready()

    async def _reconcile(self) -> None:
        held = [
            {"job_id": each.job_id, "attempt": each.attempt, "fence": each.fence}
            for each in self._slots.held()
        ]
        try:
            reply = await self._link.ask("extend", payload=orjson.dumps({"jobs": held[:_MAX_BATCH]}))
        except IstosError as refused:
            raise refusal(refused) from refused
        for job_id in reply.get("lost") or ():
            self._slots.lost(str(job_id), None)
        for job_id in reply.get("cancelled") or ():
            self._slots.cancelled(str(job_id), None)


def _answers(reply: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """To so many outcomes. Raises OwnerLost for what is none: the outcomes are then told again."""
    answers = reply.get("outcomes") or [{"ok": True}] * count
    if type(answers) is list and len(answers) == count and all(type(one) is dict for one in answers):
        return answers
    raise OwnerLost(f"the owner answered {count} outcomes with something else: {answers!r:.200}")


def _is_job(job: Any) -> bool:
    if type(job) is dict and type(job.get("job_id")) is str and type(job.get("crashes", 0)) is int:
        return True
    log.error("the owner sent something that is no job: %.200r", job)
    return False
