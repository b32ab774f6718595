"""What a probe sees of `--solo`: the supervisor's pages, of a fleet that is one process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from istos_worker.fleet.consumers import Consumers
from istos_worker.observability.figures import Figures
from supervisor.endpoint import Endpoint
from supervisor.recycling import private_bytes
from supervisor.services import reason_of
from supervisor.status import Status, Totals, WorkerStatus


class SoloPicture:
    """Reads, never changes. `is_stopping` and `lines_lost` (of the log) are asked each time."""

    def __init__(self, *, is_stopping: Callable[[], bool], lines_lost: Callable[[], int]) -> None:
        self.consumers: Consumers | None = None
        """Once they have started."""
        self.lines_lost = lines_lost
        self._is_stopping = is_stopping
        self._started_at = time.monotonic()

    def take(self) -> Status:
        try:
            size = private_bytes(os.getpid())
        except OSError:
            size = None
        return self._of(size)

    def glance(self) -> Status:
        return self._of(None)

    def figures(self) -> Figures:
        return {} if self.consumers is None else self.consumers.figures()

    def _of(self, size: int | None) -> Status:
        worker = self._worker(size)
        states = {"booting": "starting", "ready": "running", "leaving": "stopping"}
        return Status(
            name="istos-worker",
            pid=os.getpid(),
            state=states[worker.stage],
            quiet=False,
            generation=1,
            procs=1,
            uptime_s=worker.age_s,
            workers=(worker,),
            companion=None,
            totals=Totals(done=worker.done),
            last_reload_error=None,
        )

    def _worker(self, size: int | None) -> WorkerStatus:
        now = None if self.consumers is None else self.consumers.totals()
        stage = "leaving" if self._is_stopping() else "booting" if now is None else "ready"
        return WorkerStatus(
            slot=0,
            pid=os.getpid(),
            generation=1,
            stage=stage,
            age_s=time.monotonic() - self._started_at,
            done=now.done if now else 0,
            busy=now.busy if now else 0,
            slots=now.slots if now else 0,
            serving=now.connected if now else False,
            label="",
            held=now.held if now else (),
            private_bytes=size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Where the pages are, and what /metrics says of a status, of the queues' figures and of lost log lines."""

    host: str
    port: int
    page: Callable[[Status, Figures, int], str]

    @contextlib.asynccontextmanager
    async def served(self, picture: SoloPicture) -> AsyncIterator[None]:
        """Raises OSError, which names the option, when the port cannot be had."""

        def metrics(status: Status) -> str:
            return self.page(status, picture.figures(), picture.lines_lost())

        async with contextlib.AsyncExitStack() as stack:
            try:
                endpoint = Endpoint(self.host, self.port, picture=picture, metrics=metrics)
                await stack.enter_async_context(endpoint)
            except OSError as taken:
                raise OSError(f"--metrics {self.host}:{self.port}: {reason_of(taken)}") from taken
            yield
