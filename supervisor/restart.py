"""When a slot is filled again, and when the fleet gives up. Knows clocks and limits; not processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.settings import Restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHistory:
    """Deaths of one slot that follow each other without `health_s` of health between them."""

    deaths: int = 0
    failed_boots: int = 0
    crashes: int = 0
    not_before: float = 0.0


def after_death(
    history: SlotHistory, *, ready_for_s: float | None, now: float, policy: Restarts
) -> SlotHistory:
    """`ready_for_s` None: it died before it was ready."""
    if ready_for_s is not None and ready_for_s >= policy.health_s:
        history = SlotHistory()
    booted = ready_for_s is not None
    return SlotHistory(
        deaths=history.deaths + 1,
        failed_boots=0 if booted else history.failed_boots + 1,
        crashes=history.crashes + booted,
        not_before=now + delay_s(history.deaths, policy),
    )


def after_ready(history: SlotHistory) -> SlotHistory:
    return replace(history, failed_boots=0)


def after_leave(history: SlotHistory, *, ready_for_s: float, policy: Restarts) -> SlotHistory:
    """It left because it was told to: no death, and its health counts."""
    return SlotHistory() if ready_for_s >= policy.health_s else history


def delay_s(earlier_deaths: int, policy: Restarts) -> float:
    """The first death is answered at once, the next ones after 0.5, 1, 2 ... 30 s."""
    if earlier_deaths == 0:
        return 0.0
    return min(policy.first_delay_s * 2.0 ** min(earlier_deaths - 1, 30), policy.max_delay_s)


def boots_exhausted(history: SlotHistory, policy: Restarts) -> bool:
    return history.failed_boots >= policy.boot_rounds


def crash_looped(history: SlotHistory, policy: Restarts) -> bool:
    return history.crashes >= policy.crashes
