"""Run jobs in a test: no network, no processes, a clock that moves when told. Real queue rules.

    async with app.testing() as t:
        await send.enqueue("a@b.c")
        await t.run_until_idle()
        assert t.dead("jobs/email") == []

`LocalMesh` answers requests in this process as owners would: `testing(app)` puts it in the place of a session.
"""

from istos_worker.testing.harness import Ran, Testing, testing
from istos_worker.testing.local_mesh import EnqueuedJob, LocalMesh, VirtualClock

__all__ = ["EnqueuedJob", "LocalMesh", "Ran", "Testing", "VirtualClock", "testing"]
