"""Deaths, boots and counts of a fleet, slot by slot, and the verdict they add up to. Knows no process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor import restart
from supervisor.exits import ExitCode, Verdict
from supervisor.restart import SlotHistory
from supervisor.settings import Restarts
from supervisor.status import Totals


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`finished` slots (burst) are not filled again; `verdict` None: the fleet goes on."""

    policy: Restarts
    totals: Totals = field(default_factory=Totals)
    finished: set[int] = field(default_factory=set)
    ever_ready: bool = False
    verdict: Verdict | None = None
    _histories: dict[int, SlotHistory] = field(default_factory=dict)

    def history(self, slot: int) -> SlotHistory:
        return self._histories.get(slot, SlotHistory())

    def conclude(self, verdict: Verdict) -> None:
        self.verdict = self.verdict or verdict

    def count(self, name: str, amount: int = 1) -> None:
        """Add to the total called `name`."""
        self.totals = replace(self.totals, **{name: getattr(self.totals, name) + amount})

    def became_ready(self, slot: int) -> None:
        self.ever_ready = True
        self._histories[slot] = restart.after_ready(self.history(slot))

    def left(self, slot: int, *, ready_for_s: float) -> None:
        history = restart.after_leave(self.history(slot), ready_for_s=ready_for_s, policy=self.policy)
        self._histories[slot] = history

    def hold(self, slot: int, until: float) -> None:
        """Do not fill the slot before `until`."""
        history = self.history(slot)
        self._histories[slot] = replace(history, not_before=max(history.not_before, until))

    def died(self, slot: int, *, ready_for_s: float | None, now: float, others_ready: bool) -> None:
        """`ready_for_s` None: it never was. May conclude that it is no use to go on."""
        history = restart.after_death(
            self.history(slot), ready_for_s=ready_for_s, now=now, policy=self.policy
        )
        self._histories[slot] = history
        if restart.crash_looped(history, self.policy):
            health_s = self.policy.health_s
            reason = f"slot {slot} crashed {history.crashes} times without {health_s:g} s of health"
            self.conclude(Verdict(exit_code=ExitCode.CRASH_LOOP, reason=reason))
        elif restart.boots_exhausted(history, self.policy) and not others_ready:
            reason = f"workers did not become ready {history.failed_boots} times in a row"
            self.conclude(Verdict(exit_code=ExitCode.NO_BOOT, reason=reason))

    def clear_failed_boots(self) -> None:
        """Another generation's boots are not held against this one's."""
        self._histories = {slot: restart.after_ready(history) for slot, history in self._histories.items()}
