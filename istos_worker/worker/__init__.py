"""The consumer: claim pump, slots, running one delivery, dependencies (docs/worker.md)."""

from istos_worker.worker.control import Cancelled, Control, Discard, Retry, Snooze
from istos_worker.worker.dependencies import DependencyCycleError, Depends
from istos_worker.worker.handlers import Handler, Handlers, Middleware
from istos_worker.worker.settings import WorkerHooks, WorkerSettings, new_worker_id
from istos_worker.worker.statistics import Statistics
from istos_worker.worker.worker import Worker

__all__ = [
    "Cancelled",
    "Control",
    "DependencyCycleError",
    "Depends",
    "Discard",
    "Handler",
    "Handlers",
    "Middleware",
    "Retry",
    "Snooze",
    "Statistics",
    "Worker",
    "WorkerHooks",
    "WorkerSettings",
    "new_worker_id",
]
