"""The job that the current code runs in, through contextvars: for logs, and for jobs that jobs enqueue."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from istos_worker.context import JobContext
from istos_worker.worker.delivery import Delivery

_running: ContextVar[Delivery | None] = ContextVar("istos_worker.running", default=None)


def enter(delivery: Delivery) -> None:
    """To be called inside the context that the handler will run in."""
    _running.set(delivery)


def current_job() -> JobContext | None:
    """The delivery this code runs for; None outside of a job. Also in threads and tasks that the job started."""
    delivery = _running.get()
    return None if delivery is None else delivery.context


class JobLogFilter(logging.Filter):
    """Adds `job_id`, `queue`, `correlation_id` and `traceparent` to records logged inside a job."""

    def filter(self, record: logging.LogRecord) -> bool:
        delivery = _running.get()
        if delivery is not None and not hasattr(record, "job_id"):
            record.job_id = delivery.job_id
            record.queue = delivery.queue
            record.correlation_id = delivery.wire.get("correlation_id")
            record.traceparent = delivery.wire.get("traceparent")
        return True
