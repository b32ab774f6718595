"""`--check`: imports the application and says what would run. Starts nothing, opens nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from istos_worker.fleet.application import Application
from istos_worker.fleet.plan import Plan
from istos_worker.fleet.target import LoadRefused
from istos_worker.observability.output import output_failed
from supervisor.exits import ExitCode


def main() -> int:
    application = Application(Plan.take(os.environ))
    try:
        application.load()
    except LoadRefused as refused:
        print(f"istos-worker: {refused}", file=sys.stderr)
        return ExitCode.NO_IMPORT
    try:
        for line in report(application):
            print(line, flush=True)
    except OSError as failed:
        return output_failed("istos-worker", failed)
    return 0


def report(application: Application) -> Iterator[str]:
    plan = application.plan
    owned = application.declared_queues()
    slots = 0
    for one in application.consumed("check"):
        settings = one.settings
        owner = "declared here" if settings.prefix in owned else "owned elsewhere"
        yield f"queue {settings.prefix} ({owner}): {_counted(settings.concurrency, 'slot')} a process"
        slots += settings.concurrency
        if one.handlers.plain is not None:
            yield f"  handler {one.handlers.plain.label}"
        for name, handler in one.handlers.tasks.items():
            limit = handler.timeout_s or settings.job_timeout_s
            yield f"  task {name}" + (f", at most {limit:g}s" if limit else "")
    for prefix in owned:
        if prefix not in {one.settings.prefix for one in application.consumed("check")}:
            yield f"queue {prefix} (declared here): not consumed"
    each = " each" if plan.procs > 1 else ""
    yield (
        f"{_counted(plan.procs, 'process')} with {_counted(slots, 'slot')}{each}: "
        f"{_counted(plan.procs * slots, 'job')} at the same time"
    )
    yield plan.deadlines.explained(embedded=plan.data is not None)


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


if __name__ == "__main__":
    sys.exit(main())
