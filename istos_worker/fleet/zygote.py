"""The zygote of a fleet: imports the application once, opens nothing, forks workers."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from functools import partial

log = logging.getLogger(__name__)


def main() -> int:
    # What is imported is not garbage, and workers switch the collector on again.
    gc.disable()
    # All that workers need is imported here, so that they share it (uvloop alone is 3 MB).
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401
    # asyncio would import its threads, and make its policy, in each worker.
    import asyncio
    import concurrent.futures.thread  # noqa: F401

    asyncio.get_event_loop_policy()

    import zenoh

    import istos_worker.app.serving  # noqa: F401
    from istos_worker.fleet.application import Application
    from istos_worker.fleet.plan import Plan
    from istos_worker.fleet.process import live
    from istos_worker.fleet.rehearsal import rehearse
    from istos_worker.fleet.target import LoadRefused
    from supervisor.embryo import grow_up
    from supervisor.zygote import LoadFailed, serve_zygote

    fds = grow_up()
    application = Application(Plan.take(os.environ))

    def load() -> None:
        try:
            application.load()
        except LoadRefused as refused:
            raise LoadFailed(str(refused)) from refused
        application.prepare()
        try:
            rehearse()
        except Exception:  # it only saves memory: no reason not to start
            log.debug("the rehearsal failed: workers will share less memory", exc_info=True)

    child = partial(live, application=application)
    return serve_zygote(load=load, child=child, suspects=(zenoh.Session,), fds=fds)


if __name__ == "__main__":
    sys.exit(main())
