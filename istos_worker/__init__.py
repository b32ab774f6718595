"""Work queues without a broker: durable jobs over Eclipse Zenoh and a prefork worker runtime.

Names are looked up when they are first used, so that importing one part does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "App": "app",
    "Client": "client",
    "SyncClient": "client",
    "JobContext": "context",
    "CronError": "queue.cron",
    "CronSchedule": "queue.cron",
    "JobRecord": "queue.records",
    "JobState": "queue.records",
    "QueueRole": "queue.role",
    "QueueStore": "queue.store",
    "AuthContext": "wire.auth",
    "Authorizer": "wire.auth",
    "Principal": "wire.auth",
    "Public": "wire.auth",
    "TokenAuthorizer": "wire.auth",
    "require_roles": "wire.auth",
    "ZenohSettings": "wire.settings",
    "BadRequestError": "errors",
    "ConflictError": "errors",
    "ForbiddenError": "errors",
    "IstosError": "errors",
    "NotFoundError": "errors",
    "OwnerUnreachable": "errors",
    "PayloadTooLargeError": "errors",
    "RateLimitError": "errors",
    "StorageUnavailableError": "errors",
    "UnauthorizedError": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
