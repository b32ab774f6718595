"""What the processes of a fleet are told by the command that starts them. Knows names and numbers; imports no
application and no zenoh.

It travels in one environment variable, which is taken out of the environment by whoever reads it: a command
line is shown to everybody by `ps`, and the plan may hold a token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from istos_worker.wire.settings import ZenohSettings

VARIABLE = "ISTOS_WORKER_PLAN_JSON"
DEFAULT_CONCURRENCY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How many claim loops a queue gets: `PREFIX=N` beats the decorator's number, which beats `N`."""

    default: int = DEFAULT_CONCURRENCY
    by_queue: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in (self.default, *self.by_queue.values()):
            if number < 1:
                raise ValueError(f"concurrency must be at least 1, got {number}")

    def of(self, prefix: str, declared: int | None) -> int:
        named = self.by_queue.get(prefix)
        return named if named is not None else (declared or self.default)


class LogArguments(TypedDict):
    level: str
    format_: str
    lock: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: str = "info"
    format: str = "text"
    lock: str | None = None
    """A file whose POSIX lock keeps the lines of several processes apart (observability/logs.py)."""

    def named(self) -> LogArguments:
        return {"level": self.level, "format_": self.format, "lock": self.lock}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds from the instruction to stop until the workers, and until the owner, are killed."""

    drain_s: float = 25.0
    owner_stop_s: float = 4.0
    job_timeout_s: float | None = None

    @staticmethod
    def finish_s(deadline_s: float) -> float:
        """Of the seconds until a deadline, those that jobs may use: the rest is for handing them back."""
        return max(deadline_s - min(HAND_BACK_RESERVE_S, deadline_s / 2), 0.0)

    def explained(self, *, embedded: bool) -> str:
        """The arithmetic an operator needs for the platform's own stop timeout."""
        cancel_s = self.finish_s(self.drain_s)
        total_s = self.drain_s + (self.owner_stop_s if embedded else 0.0)
        owner = f", the owner within {self.owner_stop_s:g}s more" if embedded else ""
        return (
            f"on TERM: no new jobs; at {cancel_s:g}s what still runs is handed back; "
            f"at {self.drain_s:g}s workers are killed{owner}; "
            f"so the platform must wait longer than {total_s:g}s before it kills"
        )


HAND_BACK_RESERVE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    targets: tuple[str, ...]
    queues: tuple[str, ...] = ()
    """Consume only these; none: all declared."""
    concurrency: Concurrency = field(default_factory=Concurrency)
    deadlines: Deadlines = field(default_factory=Deadlines)
    network: ZenohSettings = field(default_factory=ZenohSettings)
    token: str | None = field(default=None, repr=False)
    data: str | None = None
    """Where the owner inside the fleet keeps its files; `:memory:` for none; None: there is no such owner."""
    owner_endpoint: str | None = None
    """Where that owner listens for the workers of its own fleet."""
    burst: bool = False
    procs: int = 1
    log: LogSettings = field(default_factory=LogSettings)
    figures: str | None = None
    """A folder where each worker keeps its figures for /metrics."""

    def dump(self) -> str:
        # Unescaped, so that what is no UTF-8 can be refused at the door.
        return json.dumps(asdict(self), default=str, ensure_ascii=False)

    @classmethod
    def load(cls, text: str) -> Plan:
        raw: dict[str, Any] = json.loads(text)
        network: dict[str, Any] = raw.pop("network")
        config_file = network.pop("config_file")
        return cls(
            **{
                **raw,
                "targets": tuple(raw["targets"]),
                "queues": tuple(raw["queues"]),
                "concurrency": Concurrency(**raw["concurrency"]),
                "deadlines": Deadlines(**raw["deadlines"]),
                "log": LogSettings(**raw["log"]),
            },
            network=ZenohSettings(
                **{
                    **network,
                    "connect": tuple(network["connect"]),
                    "listen": tuple(network["listen"]),
                },
                config_file=None if config_file is None else Path(config_file),
            ),
        )

    @classmethod
    def take(cls, env: MutableMapping[str, str]) -> Plan:
        """The plan in `env`, removed from it so that the application's own children never see it."""
        return cls.load(env.pop(VARIABLE))
