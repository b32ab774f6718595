"""What the fleet does with the application: finds it, asks what it consumes and owns, attaches it to a session.
Starts nothing by itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istos_worker.errors import IstosError, StorageUnavailableError
from istos_worker.fleet.consumers import Consumption
from istos_worker.fleet.plan import Plan
from istos_worker.fleet.target import TargetError, load_apps, loading
from istos_worker.wire.settings import LOOPBACK, ZenohSettings
from istos_worker.worker.settings import WorkerSettings

if TYPE_CHECKING:
    import zenoh

    from istos_worker.app import App
    from istos_worker.observability.logs import Logs
    from istos_worker.queue.role import QueueRole
    from istos_worker.storage import Storage
    from istos_worker.wire.session import Session

DATABASE = "queues.db"


class Application:
    """Before load() it is only a plan."""

    logs: Logs
    """From prepare() on, as `network`."""
    network: ZenohSettings
    """Where workers go to."""
    config: zenoh.Config | None = None

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._apps: list[App] = []

    def load(self) -> None:
        """Imports the targets. Raises LoadRefused."""
        with loading(self.plan.targets):
            self._apps = load_apps(self.plan.targets)
            self._check_consumed()
            if self.plan.data is not None:
                self._owned()

    def prepare(self) -> None:
        """To be called before workers are forked: makes what is the same in each of them. Whatever a process makes
        or runs for itself is memory that it does not share, 16 KB for a function that runs once."""
        from istos_worker.observability.logs import Logs
        from istos_worker.wire.session import read_config
        from istos_worker.worker.running import JobLogFilter

        self.logs = Logs(filters=[JobLogFilter()], **self.plan.log.named())
        self.network = self.worker_network()
        with contextlib.suppress(IstosError, ValueError):  # a worker will say what is wrong with it
            self.config = read_config(self.network)

    def _check_consumed(self) -> None:
        declared = self._declared_prefixes()
        if not declared:
            targets = ", ".join(self.plan.targets)
            raise TargetError(
                f"{targets!r} declares no worker: decorate a function with @app.worker(queue) or @app.task(queue)"
            )
        for prefix in (*self.plan.queues, *self.plan.concurrency.by_queue):
            if prefix not in declared:
                raise TargetError(f"no worker for {prefix!r}; there are: {', '.join(declared)}")
        for prefix, app in declared.items():
            if not self.plan.queues or prefix in self.plan.queues:
                _check_handlers(app, prefix)

    def _declared_prefixes(self) -> dict[str, App]:
        found: dict[str, App] = {}
        for app in self._apps:
            for prefix in app.consumed_prefixes:
                if found.setdefault(prefix, app) is not app:
                    raise TargetError(
                        f"two of the apps have a worker for {prefix!r}: give them different queues"
                    )
        return found

    # --- consuming ---------------------------------------------------------------------------------

    def consumed(self, worker_id: str) -> list[Consumption]:
        """The queues to consume here, with their slots and handlers."""
        wanted = self.plan.queues
        return [
            self._consumption(app, prefix, worker_id)
            for prefix, app in self._declared_prefixes().items()
            if not wanted or prefix in wanted
        ]

    def _consumption(self, app: App, prefix: str, worker_id: str) -> Consumption:
        plan, options = self.plan, app.consumer_options(prefix)
        settings = WorkerSettings(
            prefix=prefix,
            concurrency=plan.concurrency.of(prefix, options.concurrency),
            worker_id=worker_id,
            token=options.token or plan.token or app.token,
            poll_interval_s=options.poll_interval_s,
            job_timeout_s=plan.deadlines.job_timeout_s,
        )
        return Consumption(
            settings=settings,
            handlers=app.handlers_of(prefix),
            serializer=options.serializer or app.serializer,
        )

    @contextlib.asynccontextmanager
    async def attached(self, session: Session) -> AsyncIterator[None]:
        """The apps' own calls work, and their lifespans and hooks run, until the end of the block."""
        from istos_worker.app.serving import attached

        async with contextlib.AsyncExitStack() as stack:
            for app in self._apps:
                await stack.enter_async_context(attached(app, session, token=self.plan.token))
            yield

    # --- owning ------------------------------------------------------------------------------------

    def declared_queues(self) -> tuple[str, ...]:
        """The queues that the apps declare, whoever is to own them."""
        return tuple(dict.fromkeys(prefix for app in self._apps for prefix in app.queues))

    def _owned(self) -> dict[str, tuple[App, QueueRole]]:
        """What the owner in this fleet owns. Raises TargetError."""
        owned: dict[str, tuple[App, QueueRole]] = {}
        for app in self._apps:
            for prefix, role in app.queues.items():
                if owned.setdefault(prefix, (app, role))[0] is not app:
                    raise TargetError(f"two of the apps declare the queue {prefix!r}: declare it once")
        return owned

    def roles(self, storage: Storage) -> list[QueueRole]:
        """The owners of all declared queues. An app that brings a storage of its own keeps it."""
        return [
            role.served(storage=storage) if _is_in_memory(app.storage) else role
            for app, role in self._owned().values()
        ]

    @contextlib.asynccontextmanager
    async def beating(self, session: Session, roles: list[QueueRole]) -> AsyncIterator[None]:
        """The schedules of all apps run until the end of the block."""
        from istos_worker.app.serving import beating, client_of

        async with contextlib.AsyncExitStack() as stack:
            for app in self._apps:
                if app.session is None:
                    await stack.enter_async_context(client_of(app, session, token=self.plan.token))
                await stack.enter_async_context(beating(app, roles))
            yield

    def storage(self) -> Storage:
        """Where --data says. Raises StorageUnavailableError when the folder cannot be made."""
        from istos_worker.storage import open_storage

        if self.plan.data is None or self.plan.data == ":memory:":
            return open_storage(None)
        folder = Path(self.plan.data)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failed:
            raise StorageUnavailableError(
                f"cannot make the data folder {folder}: {failed.strerror}"
            ) from failed
        return open_storage(f"sqlite:///{folder.absolute() / DATABASE}", writes_in_loop=True)

    # --- network -----------------------------------------------------------------------------------

    def owner_network(self) -> ZenohSettings:
        """Where the owner inside the fleet listens: where --listen says, and at a socket for its own workers."""
        network = self._network()
        open_to_all = network.listen or (LOOPBACK,)
        local = () if self.plan.owner_endpoint is None else (self.plan.owner_endpoint,)
        return replace(
            network,
            mode=network.mode or "peer",
            extra=_over(network.extra, {"listen": {"endpoints": [*open_to_all, *local]}}),
        )

    def worker_network(self) -> ZenohSettings:
        """Where --connect says. With an owner in the fleet its workers are that owner's clients: one connection
        each, instead of one to every other process, and what they ask of other queues goes by way of it."""
        network = self._network()
        if self.plan.owner_endpoint is None:
            return _sharing_ports(network) if network.listen and self.plan.procs > 1 else network
        connect = {
            "endpoints": [self.plan.owner_endpoint, *network.connect],
            "exit_on_failure": False,
            "timeout_ms": 0,
        }
        return replace(
            network,
            mode=network.mode or "client",
            scouting=network.effective_scouting if network.mode == "peer" else "off",
            listen=(),
            connect=(),
            extra=_over(network.extra, {"connect": connect}),
        )

    def _network(self) -> ZenohSettings:
        """The command's settings; where it says nothing at all, the application's own."""
        configured = [app.config for app in self._apps if app.config is not None]
        return configured[0] if configured and self.plan.network == ZenohSettings() else self.plan.network


def _check_handlers(app: App, prefix: str) -> None:
    """A handler that no job fits is told at the door, not by every worker at its boot."""
    from istos_worker.worker.dependencies import DependencyCycleError

    try:
        app.handlers_of(prefix)
    except (TypeError, DependencyCycleError) as unfit:
        raise TargetError(f"the worker of {prefix!r} cannot run: {unfit}") from unfit


def _sharing_ports(network: ZenohSettings) -> ZenohSettings:
    """Several processes are told the same ports: the first has them, the others are reachable by loopback."""
    return replace(
        network,
        listen=(*network.listen, LOOPBACK),
        extra=_over(network.extra, {"listen": {"exit_on_failure": False}}),
    )


def _over(extra: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Ours wins inside each section: the rest of what the user configured there stays."""
    return {**extra, **{name: {**extra.get(name, {}), **section} for name, section in ours.items()}}


def _is_in_memory(storage: Storage) -> bool:
    from istos_worker.storage.memory import MemoryStorage

    return isinstance(storage, MemoryStorage)
