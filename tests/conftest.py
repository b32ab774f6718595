"""Fixtures for every test. Those that start processes end them by pid, also when the test fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # `pytest` alone, without `python -m`
    sys.path.insert(0, str(ROOT))

# A setting of the developer's shell must not decide what a test sees.
for _name in [
    name for name in os.environ if name.startswith(("ISTOS_WORKER_", "ISTOS_QUEUE_", "ISTOS_ZENOH_"))
]:
    del os.environ[_name]

from tests.fixtures.fleets import fleet, namespace, runtime_folder  # noqa: E402
from tests.fixtures.local import heard, way  # noqa: E402
from tests.fixtures.owners import owner  # noqa: E402
from tests.fixtures.queue_commands import istos_queue  # noqa: E402

__all__ = ["fleet", "heard", "istos_queue", "namespace", "owner", "runtime_folder", "way"]
