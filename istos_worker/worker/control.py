"""What a handler raises to say what becomes of its job (CONTRACT.md section 1). Pure."""

from __future__ import annotations

import math
import random
from typing import Any


class Control(Exception):  # noqa: N818 - not a failure
    """A decision of the handler about its own job, not a failure of its code."""


class Retry(Control):
    """Run this job again after `after_s` seconds; counts an attempt. Without `after_s` the policy of the
    task decides, or the owner's backoff.

    As a task's policy (`@app.task(..., retry=Retry(backoff_s=2, on=(OSError,)))`) it says how failures are
    repeated: `max_attempts` in all, waits of `backoff_s * 2^(attempt-1)` up to `backoff_max_s`, spread by
    `jitter`; only exceptions in `on`, others are final.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        after_s: float | None = None,
        max_attempts: int | None = None,
        backoff_s: float | None = None,
        backoff_max_s: float = 600.0,
        jitter: float = 0.1,
        on: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        super().__init__(reason or "retry asked for by the handler")
        if max_attempts is not None and max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {max_attempts!r}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, got {jitter!r}")
        self.after_s = None if after_s is None else _seconds("after_s", after_s)
        self.max_attempts = max_attempts
        self.backoff_s = None if backoff_s is None else _seconds("backoff_s", backoff_s)
        self.backoff_max_s = _seconds("backoff_max_s", backoff_max_s)
        self.jitter = jitter
        self.on = on

    def wait_s(self, attempt: int) -> float | None:
        """Seconds until the attempt after `attempt`; None leaves it to the owner."""
        if self.after_s is not None:
            return self.after_s
        if self.backoff_s is None:
            return None
        wait = min(self.backoff_s * 2.0 ** min(max(attempt, 1) - 1, 60), self.backoff_max_s)
        return wait * (1 + random.uniform(-self.jitter, self.jitter))

    def is_final(self, failure: BaseException, attempt: int) -> bool:
        """True when this policy does not repeat such a failure."""
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return True
        return isinstance(failure, Exception) and not isinstance(failure, self.on)


class Snooze(Control):
    """Not now: the job is ready again after `after_s` seconds, and no attempt is counted."""

    def __init__(self, after_s: float = 0.0) -> None:
        self.after_s = _seconds("after_s", after_s)
        super().__init__(f"snoozed for {self.after_s:g} s")


class Discard(Control):
    """No further attempt: straight to the dead letters, with `reason`."""

    def __init__(self, reason: str | BaseException = "discarded by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancelled(Control):
    """The job was cancelled, and the handler gave up."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)


def _seconds(name: str, value: Any) -> float:
    """As a float, which every kind of number in a handler can be (Decimal, numpy's), and the wire can carry."""
    seconds = float(value)
    if not 0 <= seconds < math.inf:  # NaN fails too
        raise ValueError(f"{name} must be 0 or more seconds, got {value!r}")
    return seconds
