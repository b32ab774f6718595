"""The queue's books: its jobs, their counts, and what this turn has changed. Decides nothing.

Every change of a job's state goes through `move`, so the counts are always right and every changed job is written
once per turn, however often it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from istos_worker.queue.heads import encode_job
from istos_worker.queue.parking import ResultWaits
from istos_worker.queue.ready import ReadyOrder
from istos_worker.queue.records import (
    LEASED,
    READY,
    Delivery,
    Effects,
    HandedOut,
    Instant,
    Job,
    JobResult,
    Order,
    Outgoing,
    QueueSettings,
    Waiter,
)
from istos_worker.queue.timers import Deadlines, Horizon
from istos_worker.queue.tombstones import Tombstones
from istos_worker.storage.protocol import WriteBatch

FENCE_NOTE = "fence"
FENCE_BLOCK = 100_000


@dataclass(slots=True)
class Totals:
    """What has happened since the owner started."""

    acked: int = 0
    cancelled: int = 0
    crashed: int = 0
    dead: int = 0
    delivered: int = 0
    duplicates: int = 0
    enqueued: int = 0
    expired_leases: int = 0
    nacked: int = 0
    released: int = 0
    stale: int = 0


class Ledger:
    __slots__ = (
        "_answers",
        "_dirty",
        "_fence",
        "_fence_reserved",
        "_gone",
        "_handed_out",
        "_notes",
        "_orders",
        "_outgoing",
        "_rows",
        "_seq",
        "by_id",
        "by_key",
        "by_seq",
        "counts",
        "delays",
        "expiries",
        "fed",
        "horizon",
        "keepings",
        "new_id",
        "paused",
        "random",
        "ready",
        "result_waits",
        "settings",
        "tombs",
        "totals",
        "unsent",
        "woke",
    )

    def __init__(self, settings: QueueSettings, random: Callable[[], float] | None) -> None:
        self.settings = settings
        self.by_id: dict[str, Job] = {}
        self.by_seq: dict[int, Job] = {}
        self.by_key: dict[str, Job] = {}
        """The live job that holds each unique key."""
        self.counts = [0, 0, 0, 0, 0, 0]
        self.ready = ReadyOrder(self.by_seq)
        self.fed = False
        """Something became ready since the waiting claims were last served."""
        self.woke = False
        """Something became ready in this turn."""
        self.horizon = Horizon()
        self.delays = Deadlines(self.horizon)
        self.expiries = Deadlines(self.horizon)
        self.keepings = Deadlines(self.horizon)
        """When done and cancelled jobs are forgotten."""
        self.result_waits = ResultWaits(self.horizon)
        self.tombs = Tombstones(self.put_row, self.drop_row, self.horizon, chosen_ttl_s=settings.result_ttl_s)
        self.totals = Totals()
        self.paused = False
        self.unsent: dict[int, Outgoing] = {}
        generator = Random()  # unique, not secret
        bits = generator.getrandbits
        self.new_id: Callable[[], str] = lambda: f"{bits(128):032x}"
        self.random = random or generator.random
        self._seq = 0
        self._fence = 0
        self._fence_reserved = 0
        self._dirty: dict[int, Job] = {}
        self._rows: dict[int, tuple[bytes, bytes]] = {}
        self._gone: list[int] = []
        self._notes: dict[str, bytes | None] = {}
        self._handed_out: list[HandedOut] = []
        self._answers: list[tuple[Waiter, Any]] = []
        self._orders: list[tuple[str, Order]] = []
        self._outgoing: list[Outgoing] = []

    # numbers

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def reserve_seqs(self, size: int) -> int:
        """The first of so many numbers in a row."""
        first = self._seq + 1
        self._seq += size
        return first

    def seen_seq(self, seq: int) -> None:
        self._seq = max(self._seq, seq)

    def next_fence(self) -> int:
        """Rises for ever: a block is reserved in the medium before any of it is used."""
        self._fence += 1
        if self._fence > self._fence_reserved:
            self._fence_reserved = self._fence + FENCE_BLOCK
            self._notes[FENCE_NOTE] = b"%d" % self._fence_reserved
        return self._fence

    def resume_fence(self, reserved: int) -> None:
        self._fence = self._fence_reserved = max(self._fence_reserved, reserved)

    # jobs

    def admit(self, job: Job) -> None:
        """A new job, or one read back: it is held from now on."""
        self.by_id[job.id] = job
        self.by_seq[job.seq] = job
        self.counts[job.state] += 1

    def admit_ready(self, jobs: Sequence[Job]) -> None:
        """New jobs, all of one priority and in the order of their numbers: at a time, since that is much cheaper."""
        by_seq = {job.seq: job for job in jobs}
        self.by_seq.update(by_seq)
        self._dirty.update(by_seq)
        self.by_id.update({job.id: job for job in jobs})
        self.counts[READY] += len(jobs)
        self.ready.add_in_order(jobs)
        self.fed = self.woke = True

    def changed(self, job: Job) -> None:
        self._dirty[job.seq] = job

    def move(self, job: Job, state: int) -> None:
        counts = self.counts
        counts[job.state] -= 1
        counts[state] += 1
        job.state = state
        self._dirty[job.seq] = job

    def make_ready(self, job: Job) -> None:
        """The job, whatever its state was, may be claimed, at its own place in the order."""
        job.not_before = 0.0
        self.move(job, READY)
        self.ready.add(job)
        self.fed = self.woke = True

    def forget(self, job: Job) -> None:
        self.counts[job.state] -= 1
        del self.by_id[job.id]
        del self.by_seq[job.seq]
        self._dirty.pop(job.seq, None)
        if job.stored:
            self._gone.append(job.seq)

    def tell_result(self, job: Job, state: str, result: bytes | None = None) -> None:
        """The job is finished: whoever waits for it is answered."""
        if self.result_waits:
            self._answers.extend(self.result_waits.finished(job.id, JobResult(state, result)))

    # other records

    def put_row(self, head: bytes, body: bytes) -> int:
        seq = self.next_seq()
        self._rows[seq] = (head, body)
        return seq

    def drop_row(self, seq: int) -> None:
        if self._rows.pop(seq, None) is None:
            self._gone.append(seq)

    def note(self, name: str, value: bytes | None) -> None:
        self._notes[name] = value

    # effects

    def hand_out(self, waiter: Waiter, deliveries: list[Delivery]) -> None:
        self._handed_out.append((waiter, deliveries))

    def answer(self, waiter: Waiter, answer: object) -> None:
        self._answers.append((waiter, answer))

    def order(self, worker: str, order: Order) -> None:
        self._orders.append((worker, order))

    def send(self, outgoing: Outgoing) -> None:
        self.unsent[outgoing.note_id] = outgoing
        self._outgoing.append(outgoing)

    def is_somebody_told(self) -> bool:
        """True while this turn's effects are more than writes."""
        return bool(self.woke or self._handed_out or self._answers or self._orders or self._outgoing)

    def take_early(self) -> list[HandedOut]:
        """What this turn hands out and need not wait for its writes. Where they reserve fences it must; and where they
        note that a schedule has fired, or a crash would have its job run twice."""
        if not self._handed_out or self._notes:
            return []
        early, self._handed_out = self._handed_out, []
        return early

    def take_effects(self, *, with_writes: bool) -> Effects:
        self.tombs.write(is_read_back=with_writes)
        effects = Effects(self._take_writes()) if with_writes else Effects()
        if not with_writes:
            self._forget_writes()
        if self.woke:
            self.woke = False
            effects.notify = self.counts[READY] > 0 and not self.paused
        if self._handed_out:
            effects.handed_out, self._handed_out = self._handed_out, []
        if self._answers:
            effects.answers, self._answers = self._answers, []
        if self._orders:
            effects.orders, self._orders = self._orders, []
        if self._outgoing:
            effects.outgoing, self._outgoing = self._outgoing, []
        return effects

    def _take_writes(self) -> WriteBatch:
        rows: list[tuple[int, bytes, bytes | None]] = []
        if self._dirty:
            for seq, job in self._dirty.items():
                rows.append((seq, encode_job(job), None if job.stored else job.body))
                job.stored = True
            self._dirty = {}
        if self._rows:
            rows.extend((seq, head, body) for seq, (head, body) in self._rows.items())
            self._rows = {}
        batch = WriteBatch(rows)
        if self._gone:
            batch.forgotten, self._gone = self._gone, []
        if self._notes:
            batch.notes, self._notes = self._notes, {}
        return batch

    def _forget_writes(self) -> None:
        self._dirty.clear()
        self._rows.clear()
        self._gone.clear()
        self._notes.clear()

    # looking

    def is_live(self, job: Job) -> bool:
        return job.state <= LEASED

    def instant_of(self, wall: float, now: Instant) -> float:
        """When `wall` comes, on the monotonic clock; never in the past."""
        return now.mono + max(0.0, wall - now.wall)
