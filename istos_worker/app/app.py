"""The app: registries of what a program declares, and the ways to run it. Declaring opens nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from istos_worker.app.calls import AppCalls
from istos_worker.app.declarations import ConsumerOptions, HandlerDeclaration
from istos_worker.client.bodies import as_serializer, to_body
from istos_worker.queue.declared import DeclaredStore
from istos_worker.queue.role import QueueRole
from istos_worker.serialization import JsonSerializer, Serializer
from istos_worker.storage import Storage, StoragePlugin, open_storage
from istos_worker.wire.auth import Authorizer, combine_authorizers
from istos_worker.wire.keys import queue_prefix
from istos_worker.wire.settings import ZenohSettings, settings_from_env

if TYPE_CHECKING:
    from istos_worker.client.bodies import Serializes
    from istos_worker.client.producer import Token
    from istos_worker.queue.store import QueueStore
    from istos_worker.scheduling import CatchUp, Schedule
    from istos_worker.task import Task, TaskDecorator
    from istos_worker.testing import Testing, VirtualClock
    from istos_worker.wire.session import Session
    from istos_worker.worker import Handlers, Middleware, Retry

Hook = Callable[[], Awaitable[None] | None]
HookT = TypeVar("HookT", bound=Callable[[], Any])
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Lifespan = Callable[["App"], contextlib.AbstractAsyncContextManager[Any]]

log = logging.getLogger("istos_worker.app")


class App(AppCalls):
    """`app = App("shop")`, then `@app.worker("jobs/email")`, `@app.task("jobs/email")`, `app.queue(...)`.

    `storage`: None for memory, a URL (`sqlite:///path`), or an object with `put`, `get`, `delete`.
    `authorizer`: who may use the queues that this app owns. `token`: what this app sends with its own calls.
    `config`: how it joins the mesh; unset, the peer's `ISTOS_ZENOH_*` variables count, and without them the
    machine's loopback.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        storage: Storage | StoragePlugin | str | None = None,
        authorizer: Authorizer | None = None,
        config: ZenohSettings | None = None,
        lifespan: Lifespan | None = None,
        token: Token = None,
        serializer: Serializes | None = None,
    ) -> None:
        self.name = name
        self.storage: Storage = open_storage(storage)
        self.authorizer = authorizer
        self.config = config
        self.lifespan = lifespan
        self.token = token.decode() if isinstance(token, bytes) else token
        self.serializer: Serializer = as_serializer(serializer) or JsonSerializer()
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.middleware: list[Middleware] = []
        self.queues: dict[str, QueueRole] = {}
        """Nothing of them is opened before they are bound."""
        self.handlers: dict[str, HandlerDeclaration] = {}
        self.tasks: dict[str, dict[str, Task[..., Any]]] = {}
        self.schedules: list[Schedule] = []
        self.startup_hooks: list[Hook] = []
        self.shutdown_hooks: list[Hook] = []
        self._made: dict[str, tuple[list[object], Handlers]] = {}
        """By queue: what its handlers were made of, and they."""
        self.session: Session | None = None
        """The open session; None outside of `serving()`, `connected()` and worker processes."""

    def __repr__(self) -> str:
        return f"App({self.name!r})" if self.name else "App()"

    # --- declaring ---------------------------------------------------------------------------------

    def queue(
        self,
        prefix: str,
        *,
        lease_s: float = 30.0,
        max_attempts: int = 5,
        sweep_interval_s: float = 5.0,
        retry_backoff_s: float = 1.0,
        retry_backoff_max_s: float = 600.0,
        retry_jitter: float = 0.1,
        keep_results: bool = False,
        result_ttl_s: float = 3600.0,
        ha: bool = False,
        authorizer: Authorizer | None = None,
        store: QueueStore | None = None,
        crash_budget: int = 3,
    ) -> QueueRole:
        """This app can own the queue: `serving()`, `istos-queue serve TARGET` and `istos-worker --embedded`
        do. Durations in seconds. Raises ValueError when the queue is declared already."""
        name = queue_prefix(prefix)
        if name in self.queues:
            raise ValueError(f"queue {name!r} is declared already")
        role = self.queues[name] = QueueRole(
            name,
            store or DeclaredStore(name, self.storage, keep_results, result_ttl_s),
            lease_s=lease_s,
            max_attempts=max_attempts,
            sweep_interval_s=sweep_interval_s,
            retry_backoff_s=retry_backoff_s,
            retry_backoff_max_s=retry_backoff_max_s,
            retry_jitter=retry_jitter,
            crash_budget=crash_budget,
            ha=ha,
            authorizer=combine_authorizers(self.authorizer, authorizer),
            token=self.token,
        )
        return role

    def worker(
        self,
        prefix: str,
        *,
        concurrency: int | None = None,
        poll_interval_s: float = 1.0,
        serializer: Serializes | None = None,
        token: Token = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """The decorated function runs the queue's jobs: it takes the decoded job, returning acks, raising
        nacks. It may also name `ctx` and `Depends(...)` parameters."""
        name = queue_prefix(prefix)
        options = ConsumerOptions(
            concurrency=concurrency,
            poll_interval_s=poll_interval_s,
            serializer=as_serializer(serializer),
            token=token.decode() if isinstance(token, bytes) else token,
        )

        def register(function: FunctionT) -> FunctionT:
            if name in self.handlers:
                raise ValueError(
                    f"queue {name!r} has a handler already, {self.handlers[name].function.__qualname__}"
                )
            self.handlers[name] = HandlerDeclaration(function=function, options=options)
            return function

        return register

    def task(
        self,
        prefix: str,
        name: str | None = None,
        *,
        timeout_s: float | None = None,
        retry: Retry | None = None,
    ) -> TaskDecorator:
        """The decorated function becomes a task of the queue: still called as a plain function, and enqueued
        with `await fn.enqueue(...)`. Any number of functions share a queue; `name` is `module.function`."""
        from istos_worker.task import task_decorator

        queue = queue_prefix(prefix)
        return task_decorator(
            self, queue, name=name, timeout_s=timeout_s, retry=retry, on_task=self._register_task
        )

    def _register_task(self, task: Task[..., Any]) -> None:
        named = self.tasks.setdefault(task.queue, {})
        if task.name in named:
            raise ValueError(f"queue {task.queue!r} has a task {task.name!r} already: give this one a name=")
        named[task.name] = task

    def schedule(
        self,
        prefix: str,
        data: Any,
        *,
        every_s: float | None = None,
        cron: str | None = None,
        initial_delay_s: float | None = None,
        priority: int = 0,
        serializer: Serializes | None = None,
        token: Token = None,
        tz: str | tzinfo | None = None,
        catch_up: CatchUp = "skip",
        name: str | None = None,
    ) -> Schedule:
        """Enqueues `data` every so many seconds, or by a cron expression in the time zone `tz` (default: the
        machine's). However many processes run the schedule and however often they restart, each tick is
        enqueued once. `catch_up` says what becomes of ticks missed by more than a minute."""
        from istos_worker.scheduling import make_schedule  # calendars and time zones: most apps do without

        chosen = as_serializer(serializer) or self.serializer
        made = make_schedule(
            queue_prefix(prefix),
            data,
            to_body(chosen, data),
            every_s=every_s,
            cron=cron,
            initial_delay_s=initial_delay_s,
            tz=tz,
            catch_up=catch_up,
            name=name,
            priority=priority,
            serializer=chosen,
            token=token.decode() if isinstance(token, bytes) else token,
        )
        if any(known.name == made.name for known in self.schedules):
            raise ValueError(f"schedule {made.name!r} exists already: give each its own name=")
        self.schedules.append(made)
        return made

    def on_startup(self, hook: HookT) -> HookT:
        """Runs in every process that serves or works, once it is connected and before the first job."""
        self.startup_hooks.append(hook)
        return hook

    def on_shutdown(self, hook: HookT) -> HookT:
        """Runs after the last job."""
        self.shutdown_hooks.append(hook)
        return hook

    def add_middleware(self, middleware: Middleware) -> Middleware:
        """`async def middleware(ctx, call_next)` around every job; the first added is the outermost."""
        self.middleware.append(middleware)
        return middleware

    # --- looking -----------------------------------------------------------------------------------

    @property
    def consumed_prefixes(self) -> tuple[str, ...]:
        """The queues that have a handler or a task here."""
        return tuple(dict.fromkeys((*self.handlers, *self.tasks)))

    def consumer_options(self, prefix: str) -> ConsumerOptions:
        """How the queue is to be consumed."""
        declared = self.handlers.get(prefix)
        return ConsumerOptions() if declared is None else declared.options

    def handlers_of(self, prefix: str) -> Handlers:
        """What runs the jobs of the queue. Made again when something was declared since: a zygote makes them, and a
        worker finds them made."""
        declared, tasks = self.handlers.get(prefix), self.tasks.get(prefix, {})
        overrides = self.dependency_overrides
        made_of: list[object] = [declared, *tasks.values(), *overrides, *overrides.values(), *self.middleware]
        known_of, known = self._made.get(prefix, ([], None))
        if known is None or len(known_of) != len(made_of) or not all(map(operator.is_, known_of, made_of)):
            known = self._handlers_made(declared, tasks)
            self._made[prefix] = made_of, known
        return known

    def _handlers_made(
        self, declared: HandlerDeclaration | None, tasks: dict[str, Task[..., Any]]
    ) -> Handlers:
        from istos_worker.worker import Handler, Handlers

        plain = (
            None
            if declared is None
            else Handler.plain(declared.function, overrides=self.dependency_overrides)
        )
        named = {name: task.handler(overrides=self.dependency_overrides) for name, task in tasks.items()}
        return Handlers(plain=plain, tasks=named, middleware=tuple(self.middleware))

    def network(self) -> ZenohSettings:
        """How this app joins the mesh when nobody says otherwise."""
        return self.config if self.config is not None else settings_from_env(os.environ)

    # --- running -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[App]:
        """Session open, declared queues owned, workers and schedules running, until the end of the block."""
        from istos_worker.app.serving import serving

        async with serving(self):
            yield self

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[App]:
        """Session open and nothing more: for a program that only enqueues and asks."""
        from istos_worker.app.serving import connected

        async with connected(self):
            yield self

    def testing(
        self, *, clock: VirtualClock | None = None
    ) -> contextlib.AbstractAsyncContextManager[Testing]:
        """`async with app.testing() as t`: jobs run in this process, without network, when `t` is told to."""
        from istos_worker.testing import testing

        return testing(self, clock=clock)

    async def run_async(self) -> None:
        """`serving()` until TERM or INT."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        caught = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not in the main thread: whoever runs us there cancels instead.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, stopped.set)
                caught.append(number)
        try:
            async with self.serving():
                log.info("%r is serving", self)
                await stopped.wait()
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def run(self) -> None:
        """`run_async()` from code without an event loop; from within one, starts it there in the background."""
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.run_async())
            return
        self._background_run = loop.create_task(self.run_async())
