"""Claims that wait for a job, and callers that wait for a result. Knows who waits; not what for it is worth."""

from __future__ import annotations

from collections.abc import Iterator

from istos_worker.queue.holders import Holder
from istos_worker.queue.records import ClaimRequest, JobResult, Waiter
from istos_worker.queue.timers import Deadlines, Horizon


class ParkedClaim:
    __slots__ = ("holder", "number", "request", "waiter")

    def __init__(self, number: int, request: ClaimRequest, waiter: Waiter, holder: Holder | None) -> None:
        self.number = number
        self.request = request
        self.waiter = waiter
        self.holder = holder


class ParkedClaims:
    """Waiting claims, first come first served, grouped by the tasks they take."""

    __slots__ = ("_by_waiter", "_numbers", "_parked", "deadlines", "groups")

    def __init__(self, horizon: Horizon) -> None:
        self.groups: dict[frozenset[str] | None, dict[int, ParkedClaim]] = {}
        self.deadlines = Deadlines(horizon)
        self._parked: dict[int, ParkedClaim] = {}
        self._by_waiter: dict[int, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, request: ClaimRequest, waiter: Waiter, holder: Holder | None, due: float) -> None:
        self._numbers += 1
        parked = ParkedClaim(self._numbers, request, waiter, holder)
        self._parked[parked.number] = parked
        self._by_waiter[id(waiter)] = parked.number
        self.deadlines.set(parked.number, due)
        if holder is not None:
            holder.parked = parked
        if holder is None or not holder.is_missing:
            self.resume(parked)

    def resume(self, parked: ParkedClaim) -> None:
        self.groups.setdefault(parked.request.tasks, {})[parked.number] = parked

    def suspend(self, parked: ParkedClaim) -> None:
        """Keeps the claim, but gives it nothing: its process is missing."""
        group = self.groups.get(parked.request.tasks)
        if group is not None and group.pop(parked.number, None) is not None and not group:
            del self.groups[parked.request.tasks]

    def leave(self, parked: ParkedClaim) -> None:
        self.suspend(parked)
        self._parked.pop(parked.number, None)
        self._by_waiter.pop(id(parked.waiter), None)
        self.deadlines.drop(parked.number)
        if parked.holder is not None and parked.holder.parked is parked:
            parked.holder.parked = None

    def of_waiter(self, waiter: Waiter) -> ParkedClaim | None:
        number = self._by_waiter.get(id(waiter))
        return None if number is None else self._parked.get(number)

    def pop_due(self, now: float) -> ParkedClaim | None:
        number = self.deadlines.pop_due(now)
        return None if number is None else self._parked.get(number)

    def surrender(self) -> list[Waiter]:
        parked = list(self._parked.values())
        for one in parked:
            self.leave(one)
        return [one.waiter for one in parked]


class ResultWaits:
    """Callers waiting for a job to finish."""

    __slots__ = ("_by_job", "_by_waiter", "_numbers", "_waits", "deadlines")

    def __init__(self, horizon: Horizon) -> None:
        self.deadlines = Deadlines(horizon)
        self._waits: dict[int, tuple[str, Waiter]] = {}
        self._by_job: dict[str, list[int]] = {}
        self._by_waiter: dict[int, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._waits)

    def wait(self, waiter: Waiter, job_id: str, due: float) -> None:
        self._numbers += 1
        self._waits[self._numbers] = (job_id, waiter)
        self._by_job.setdefault(job_id, []).append(self._numbers)
        self._by_waiter[id(waiter)] = self._numbers
        self.deadlines.set(self._numbers, due)

    def finished(self, job_id: str, result: JobResult) -> Iterator[tuple[Waiter, JobResult]]:
        """The answers to everyone who waits for this job. Costs one look-up when nobody does."""
        for number in self._by_job.pop(job_id, ()):
            _, waiter = self._waits.pop(number)
            self._by_waiter.pop(id(waiter), None)
            self.deadlines.drop(number)
            yield waiter, result

    def pop_due(self, now: float) -> tuple[str, Waiter] | None:
        number = self.deadlines.pop_due(now)
        return None if number is None else self._leave(number)

    def withdraw(self, waiter: Waiter) -> None:
        number = self._by_waiter.get(id(waiter))
        if number is not None:
            self.deadlines.drop(number)
            self._leave(number)

    def _leave(self, number: int) -> tuple[str, Waiter]:
        job_id, waiter = self._waits.pop(number)
        self._by_waiter.pop(id(waiter), None)
        numbers = self._by_job[job_id]
        numbers.remove(number)
        if not numbers:
            del self._by_job[job_id]
        return job_id, waiter

    def surrender(self) -> list[Waiter]:
        return [self._leave(number)[1] for number in list(self._waits)]
