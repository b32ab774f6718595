"""Work queues without a broker: durable jobs over Eclipse Zenoh and a prefork worker runtime.

Names are looked up when they are first used, so that importing one part does not load the others.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes longer to import than a TERM to come: whoever needs it loads it
if TYPE_CHECKING:
    from typing import Any

    from istos_worker.app import App
    from istos_worker.client import Client, SyncClient
    from istos_worker.context import JobContext
    from istos_worker.errors import (
        BadRequestError,
        ConflictError,
        ForbiddenError,
        IstosError,
        NotFoundError,
        OwnerUnreachable,
        PayloadTooLargeError,
        RateLimitError,
        StorageUnavailableError,
        UnauthorizedError,
    )
    from istos_worker.queue.cron import CronError, CronSchedule
    from istos_worker.queue.records import JobRecord, JobState
    from istos_worker.queue.role import QueueRole
    from istos_worker.queue.store import QueueStore
    from istos_worker.serialization import JsonSerializer, RawSerializer, Serializer
    from istos_worker.storage import StoragePlugin
    from istos_worker.task import JobFailed, JobHandle, Task
    from istos_worker.wire.auth import (
        AuthContext,
        Authorizer,
        Principal,
        Public,
        TokenAuthorizer,
        require_roles,
    )
    from istos_worker.wire.settings import ZenohSettings
    from istos_worker.worker import Cancelled, DependencyCycleError, Depends, Discard, Retry, Snooze, Worker
    from istos_worker.worker.running import current_job

__version__ = "0.1.0"

__all__ = [
    "App",
    "AuthContext",
    "Authorizer",
    "BadRequestError",
    "Cancelled",
    "Client",
    "ConflictError",
    "CronError",
    "CronSchedule",
    "DependencyCycleError",
    "Depends",
    "Discard",
    "ForbiddenError",
    "IstosError",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "JobRecord",
    "JobState",
    "JsonSerializer",
    "NotFoundError",
    "OwnerUnreachable",
    "PayloadTooLargeError",
    "Principal",
    "Public",
    "QueueRole",
    "QueueStore",
    "RateLimitError",
    "RawSerializer",
    "Retry",
    "Serializer",
    "Snooze",
    "StoragePlugin",
    "StorageUnavailableError",
    "SyncClient",
    "Task",
    "TokenAuthorizer",
    "UnauthorizedError",
    "Worker",
    "ZenohSettings",
    "current_job",
    "require_roles",
]

_NAMES_BY_HOME = {
    "app": ("App",),
    "client": (
        "Client",
        "SyncClient",
    ),
    "context": ("JobContext",),
    "errors": (
        "BadRequestError",
        "ConflictError",
        "ForbiddenError",
        "IstosError",
        "NotFoundError",
        "OwnerUnreachable",
        "PayloadTooLargeError",
        "RateLimitError",
        "StorageUnavailableError",
        "UnauthorizedError",
    ),
    "queue.cron": (
        "CronError",
        "CronSchedule",
    ),
    "queue.records": (
        "JobRecord",
        "JobState",
    ),
    "queue.role": ("QueueRole",),
    "queue.store": ("QueueStore",),
    "serialization": (
        "JsonSerializer",
        "RawSerializer",
        "Serializer",
    ),
    "storage": ("StoragePlugin",),
    "task": (
        "JobFailed",
        "JobHandle",
        "Task",
    ),
    "wire.auth": (
        "AuthContext",
        "Authorizer",
        "Principal",
        "Public",
        "TokenAuthorizer",
        "require_roles",
    ),
    "wire.settings": ("ZenohSettings",),
    "worker": (
        "Cancelled",
        "DependencyCycleError",
        "Depends",
        "Discard",
        "Retry",
        "Snooze",
        "Worker",
    ),
    "worker.running": ("current_job",),
}
_HOME = {name: home for home, names in _NAMES_BY_HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
