"""Claims and outcomes against a peer 0.3 owner: one job a request, workflows advanced here (docs/worker.md)."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import logging
import time
from typing import Any

import orjson

from istos_worker.errors import IstosError
from istos_worker.serialization import Serializer
from istos_worker.wire.codec import encode_params
from istos_worker.worker.delivery import Delivery, Followup
from istos_worker.worker.link import OwnerLost, refusal
from istos_worker.worker.outcomes import Acked, Failed, Outcome, base64_text
from istos_worker.worker.workplace import Workplace

log = logging.getLogger(__name__)
_AT_ONCE = 16


class BasePump:
    def __init__(self, place: Workplace, *, serializer: Serializer) -> None:
        self._settings = place.settings
        self._link = place.link
        self._slots = place.slots
        self._outbox = place.outbox
        self._gate = place.gate
        self._on_ready = place.on_ready
        self._serializer = serializer
        self._claim_wake = asyncio.Event()
        self._outcome_wake = asyncio.Event()
        self._notified = asyncio.Event()

    def wake(self) -> None:
        self._claim_wake.set()
        self._outcome_wake.set()
        if not self._gate.open:
            self._notified.set()

    def notified(self) -> None:
        self._notified.set()

    async def run(self) -> None:
        """Until the drain is complete. Raises OwnerLost; unconfirmed outcomes are kept."""
        both = {
            asyncio.ensure_future(self._claim_for_ever()),
            asyncio.ensure_future(self._confirm_for_ever()),
        }
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for one in done:
                one.result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _claim_for_ever(self) -> None:
        while not self._gate.draining:
            self._claim_wake.clear()
            if self._gate.open and self._slots.free > 0:
                self._notified.clear()
                if not await self._claim():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._settings.poll_interval_s):
                            await self._notified.wait()
            else:
                await self._claim_wake.wait()

    async def _claim(self) -> bool:
        """Takes one job. False: there is none."""
        try:
            reply = await self._link.ask("claim")
        except IstosError as refused:
            raise refusal(refused) from refused
        self._on_ready()
        if not isinstance(reply.get("job_id"), str):
            return False
        # Also during a drain: a job cannot be handed back to this kind of owner.
        self._slots.offer([Delivery(self._settings.prefix, reply, time.monotonic())])
        if reply.get("fence") is not None:
            raise OwnerLost("the owner speaks more than the base protocol")  # it will be asked again
        return True

    async def _confirm_for_ever(self) -> None:
        while not (self._gate.draining and self._slots.idle and not self._outbox):
            self._outcome_wake.clear()
            if not self._outbox:
                await self._outcome_wake.wait()
                continue
            batch = self._outbox.next_batch(_AT_ONCE)
            answers = await asyncio.gather(
                *(self._confirm(delivery, outcome) for delivery, outcome in batch), return_exceptions=True
            )
            self._outbox.confirmed(batch, [self._reply_of(answer) for answer in answers])
            lost = [answer for answer in answers if isinstance(answer, OwnerLost)]
            if lost:
                raise lost[0]

    @staticmethod
    def _reply_of(answer: dict[str, Any] | BaseException) -> dict[str, Any]:
        match answer:
            case OwnerLost():
                return {"error": "not_found"}
            case IstosError():
                return {"error": answer.code, "message": answer.message}
            case BaseException():
                return {"error": "bad_request", "message": str(answer)}
        return answer if answer.get("ok") else {"stale": True}

    async def _confirm(self, delivery: Delivery, outcome: Outcome) -> dict[str, Any]:
        match outcome:
            case Acked(result=result):
                await self._advance(delivery, result)
                params = encode_params({"job_id": delivery.job_id})
                return await self._link.ask("ack", params, payload=result)
            case Failed(error=error):
                return await self._nack(delivery, error)
        return await self._nack(delivery, "handed back by its worker")

    async def _nack(self, delivery: Delivery, error: str) -> dict[str, Any]:
        params = encode_params({"job_id": delivery.job_id, "attempt": delivery.attempt})
        return await self._link.ask("nack", params, payload=error.encode())

    async def _advance(self, delivery: Delivery, result: bytes) -> None:
        """Enqueues what follows, before the ack: a crash in between repeats the step rather than losing it."""
        if delivery.followups is None:
            delivery.followups = await self._followups(delivery, result)
        while delivery.followups:
            prefix, params, body = delivery.followups[0]
            await self._link.forward(
                prefix,
                "enqueue",
                params,
                body,
                correlation_id=delivery.wire.get("correlation_id"),
                traceparent=delivery.wire.get("traceparent"),
            )
            del delivery.followups[0]

    async def _followups(self, delivery: Delivery, result: bytes) -> list[Followup]:
        workflow = _workflow(delivery)
        found: list[Followup] = []
        chain = workflow.get("chain")
        if chain:
            rest = {"wf": encode_workflow({"chain": chain[1:]})} if chain[1:] else {}
            found.append(Followup(str(chain[0]["prefix"]).strip("/"), dict(rest), result))
        chord = workflow.get("chord")
        if chord:
            callback = await self._report(chord, result)
            if callback is not None:
                found.append(callback)
        return found

    async def _report(self, chord: dict[str, Any], result: bytes) -> Followup | None:
        params = encode_params({"chord_id": chord["id"], "index": chord["index"], "size": chord["size"]})
        reply = await self._link.ask("chord", params, payload=base64_text(result).encode())
        if not reply.get("complete"):
            return None
        read = self._serializer.deserialize
        results = [
            None if each is None else read(binascii.a2b_base64(each)) for each in reply.get("results") or ()
        ]
        callback = chord["callback"]
        body = {"results": results, "input": read(binascii.a2b_base64(callback["data"]))}
        return Followup(str(callback["prefix"]).strip("/"), {}, self._serializer.serialize(body))


def encode_workflow(workflow: dict[str, Any]) -> str:
    return binascii.b2a_base64(orjson.dumps(workflow), newline=False).decode()


def _workflow(delivery: Delivery) -> dict[str, Any]:
    raw = delivery.wire.get("wf")
    if not raw:
        return {}
    try:
        workflow = orjson.loads(binascii.a2b_base64(raw))
    except ValueError:
        workflow = None
    if not isinstance(workflow, dict):
        log.error("job %s carries a workflow that cannot be read: it ends here", delivery.label)
        return {}
    return workflow
