"""Fixtures for applications' tests. Loaded by every pytest run where istos-worker is installed, so it imports
nothing until a fixture is used.

    async def test_a_welcome_mail_is_sent(istos_testing):
        async with istos_testing(app) as t:
            await welcome.enqueue("a@b.c")
            await t.run_until_idle()
            assert t.dead("jobs/email") == []
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from istos_worker.testing import Testing, VirtualClock


@pytest.fixture
def istos_clock() -> VirtualClock:
    """The clock of the jobs in this test: it moves when told (`t.advance(60)`)."""
    from istos_worker.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def istos_testing(istos_clock: VirtualClock) -> Callable[[Any], AbstractAsyncContextManager[Testing]]:
    """`istos_worker.testing.testing` with this test's clock."""
    from functools import partial

    from istos_worker.testing import testing

    return partial(testing, clock=istos_clock)
