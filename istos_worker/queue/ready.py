"""The order in which ready jobs are taken. Knows keys and task names; not why a job is ready.

A job's key is one integer, `(-priority << 48) + seq`, so a smaller key goes first: priority from high to low, then
first in, first out. The key never changes, which is how a redelivered job finds its old place again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from istos_worker.queue.records import READY, Job

SEQ_BITS = 48
_SEQ_MASK = (1 << SEQ_BITS) - 1
PLAIN = "*"
"""The line of bodies that are no task call."""


class ReadyLine:
    """Keys of one task. New jobs mostly arrive in rising order: those go to a plain queue, at constant cost
    whatever its length; the rest (returned, matured, of higher priority) go to a heap."""

    __slots__ = ("_heap", "_rising", "stale")

    def __init__(self) -> None:
        self._rising: deque[int] = deque()
        self._heap: list[int] = []
        self.stale = 0

    def __len__(self) -> int:
        return len(self._rising) + len(self._heap)

    def push(self, key: int) -> None:
        rising = self._rising
        if not rising or key > rising[-1]:
            rising.append(key)
        else:
            heappush(self._heap, key)

    def extend(self, keys: Sequence[int]) -> None:
        """As `push` of each; the keys rise."""
        rising = self._rising
        if not rising or keys[0] > rising[-1]:
            rising.extend(keys)
        else:
            for key in keys:
                self.push(key)

    def head(self) -> int | None:
        rising, heap = self._rising, self._heap
        if heap and (not rising or heap[0] < rising[0]):
            return heap[0]
        return rising[0] if rising else None

    def pop(self) -> int | None:
        rising, heap = self._rising, self._heap
        if heap and (not rising or heap[0] < rising[0]):
            return heappop(heap)
        return rising.popleft() if rising else None

    def oldest_seqs(self, jobs: Mapping[int, Job]) -> Iterator[int]:
        """Where the oldest job is, unless priorities hide it."""
        rising, heap = self._rising, self._heap
        while rising and not _is_ready(jobs, rising[0]):
            rising.popleft()
            self.skipped()
        while heap and not _is_ready(jobs, heap[0]):
            heappop(heap)
            self.skipped()
        for keys in (rising, heap):
            if keys:
                yield keys[0] & _SEQ_MASK

    def skipped(self) -> None:
        """An entry that surfaced was stale."""
        if self.stale:
            self.stale -= 1

    def sweep(self, jobs: Mapping[int, Job]) -> None:
        self._rising = deque(key for key in self._rising if _is_ready(jobs, key))
        self._heap = [key for key in self._heap if _is_ready(jobs, key)]
        heapify(self._heap)
        self.stale = 0


def _is_ready(jobs: Mapping[int, Job], key: int) -> bool:
    job = jobs.get(key & _SEQ_MASK)
    return job is not None and job.state == READY


def _key(job: Job) -> int:
    return (-job.priority << SEQ_BITS) + job.seq if job.priority else job.seq


class ReadyOrder:
    """All ready jobs: one line per task name. Entries of jobs that left otherwise are skipped when they surface."""

    __slots__ = ("_jobs", "lines")

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        self._jobs = jobs
        self.lines: dict[str, ReadyLine] = {}

    def add(self, job: Job) -> None:
        name = job.task or PLAIN
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = ReadyLine()
        line.push(_key(job))

    def add_in_order(self, jobs: Sequence[Job]) -> None:
        """As `add` of each; the jobs are of one priority, in the order of their numbers."""
        keys: dict[str, list[int]] = {}
        for job in jobs:
            keys.setdefault(job.task or PLAIN, []).append(_key(job))
        for name, rising in keys.items():
            self.lines.setdefault(name, ReadyLine()).extend(rising)

    def discard(self, job: Job) -> None:
        """The job stops being ready without having been taken; its entry stays until it surfaces or is swept."""
        line = self.lines.get(job.task or PLAIN)
        if line is None:
            return
        line.stale += 1
        if line.stale > 64 and line.stale * 2 > len(line):
            line.sweep(self._jobs)

    def picker(self, tasks: frozenset[str] | None) -> Picker | None:
        """Takes jobs that a claim for `tasks` may have; None when there are none."""
        lines = self.lines
        if tasks is None:
            chosen = list(lines)
        elif len(tasks) < len(lines):
            chosen = [name for name in tasks if name in lines]
        else:
            chosen = [name for name in lines if name in tasks]
        return Picker(self, chosen) if chosen else None

    def take_from(self, name: str) -> Iterator[Job]:
        """The ready jobs of a line, taken as they are asked for; an empty line is given up."""
        line, jobs = self.lines[name], self._jobs
        while (key := line.pop()) is not None:
            job = jobs.get(key & _SEQ_MASK)
            if job is not None and job.state == READY:
                yield job
            else:
                line.skipped()
        del self.lines[name]

    def oldest(self) -> Job | None:
        """The job that has been waiting longest, as far as the fronts of the lines show it."""
        fronts = [seq for line in self.lines.values() for seq in line.oldest_seqs(self._jobs)]
        return self._jobs[min(fronts)] if fronts else None


class Picker:
    """Takes jobs across some lines in the queue's global order. Valid until something becomes ready."""

    __slots__ = ("_heads", "_names", "_order")

    def __init__(self, order: ReadyOrder, names: list[str]) -> None:
        self._order = order
        self._names = names
        self._heads: list[tuple[int, str]] | None = None
        if len(names) > 1:
            self._heads = [(head, name) for name in names if (head := order.lines[name].head()) is not None]
            heapify(self._heads)

    def __len__(self) -> int:
        """How many jobs there are to take; may count a few that left meanwhile."""
        lines = self._order.lines
        return sum(len(line) - line.stale for name in self._names if (line := lines.get(name)) is not None)

    def taken(self) -> Iterator[Job]:
        """The jobs, each taken when it is asked for. The caller changes its state before it asks for another."""
        heads = self._heads
        if heads is None:
            return self._order.take_from(self._names[0])
        return self._across(heads)

    def _across(self, heads: list[tuple[int, str]]) -> Iterator[Job]:
        while heads:
            head, name = heads[0]
            line = self._order.lines.get(name)
            first = line.head() if line is not None else None
            if first is None:
                heappop(heads)
            elif first != head:
                heapreplace(heads, (first, name))
            elif (job := self._take_head(name)) is not None:
                yield job

    def _take_head(self, name: str) -> Job | None:
        line = self._order.lines[name]
        key = line.pop()
        job = None if key is None else self._order._jobs.get(key & _SEQ_MASK)
        if not line:
            del self._order.lines[name]
        if job is not None and job.state == READY:
            return job
        line.skipped()
        return None
