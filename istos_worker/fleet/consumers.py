"""All queues' workers of one process, started and stopped together. Knows workers; not who gives the orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from istos_worker.observability.figures import QueueFigures
from istos_worker.serialization import Serializer
from istos_worker.worker.handlers import Handlers
from istos_worker.worker.link import Mesh
from istos_worker.worker.settings import WorkerHooks, WorkerSettings
from istos_worker.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """One queue that this process consumes, and what runs its jobs."""

    settings: WorkerSettings
    handlers: Handlers
    serializer: Serializer | None = None


class Totals(NamedTuple):
    done: int
    busy: int
    slots: int
    held: tuple[str, ...]
    """`prefix/job_id` of the jobs running now, a queue's newest first: where there is no room for all of them, those
    are left that more likely caused a death."""
    connected: bool


class Consumers:
    """`on_change` is called on the loop whenever a figure changed; `retire` when this process should be replaced."""

    def __init__(
        self,
        consumed: Sequence[Consumption],
        session: Mesh,
        *,
        on_change: Callable[[], None],
        retire: Callable[[str], None],
    ) -> None:
        hooks = WorkerHooks(on_change=on_change, retire=retire)
        self._workers = {
            one.settings.prefix: Worker(
                one.settings,
                session=session,
                handlers=one.handlers,
                serializer=one.serializer,
                hooks=hooks,
            )
            for one in consumed
        }

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(self._workers)

    async def start(self) -> None:
        for worker in self._workers.values():
            await worker.start()

    def quiet(self) -> None:
        for worker in self._workers.values():
            worker.quiet()

    def resume(self) -> None:
        for worker in self._workers.values():
            worker.resume()

    async def drain(self, deadline_s: float | None) -> None:
        await asyncio.gather(*(worker.drain(deadline_s) for worker in self._workers.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    def speaks_base_only(self, prefix: str) -> bool:
        """True once the queue's owner is known to be a peer 0.3."""
        return self._workers[prefix].statistics.owner == "peer 0.3"

    def totals(self) -> Totals:
        """Asked for before a job's first line: one function, since each costs an idle process some microseconds."""
        done = busy = slots = 0
        connected = True
        held: list[str] = []
        for prefix, worker in self._workers.items():
            now = worker.statistics
            done += now.done
            busy += now.busy
            slots += now.slots
            connected = connected and now.connected
            held += [f"{prefix}/{job_id}" for job_id in reversed(worker.running())]
        return Totals(done, busy, slots, tuple(held), connected)

    def labels(self) -> list[str]:
        return [label for worker in self._workers.values() for label in worker.labels()]

    def unconfirmed(self) -> bool:
        """True while something is running or claimed."""
        return any(one.statistics.busy or one.statistics.prefetched for one in self._workers.values())

    def figures(self) -> dict[str, QueueFigures]:
        return {prefix: _figures_of(worker) for prefix, worker in self._workers.items()}


def _figures_of(worker: Worker) -> QueueFigures:
    now = worker.statistics
    return QueueFigures(
        done=now.done,
        succeeded=now.succeeded,
        failed=now.failed,
        released=now.released,
        stale=now.stale,
        busy=now.busy,
        slots=now.slots,
        prefetched=now.prefetched,
        connected=now.connected,
    )
