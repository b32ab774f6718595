"""One system set up for one sample: its emptied broker, its fleet, its producer, its jobs' records."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.brokers import ROOT, Broker, Site
from benchmarks.plan import Plan
from benchmarks.processes import POLL_S, Group, wait_until
from benchmarks.record import FILE_VARIABLE, Kind, Records
from benchmarks.services import listens
from benchmarks.systems import Fleet, System, Way

_PRODUCER_S = 300.0
_LATE_DUPLICATES_S = 0.3
_START_S = 15.0
_DEAD_S = 1.0
_WARM_JOBS = 64


class Unfinished(Exception):  # noqa: N818
    """A peer or ours was still at work when the time was up: no figure, and no verdict on lost jobs."""


class Rig:
    def __init__(self, system: System, broker: Broker, plan: Plan, *, folder: Path, fast: Path) -> None:
        self.system = system
        self.broker = broker
        self.plan = plan
        self.records = Records(fast / "records.bin")
        self._folder = folder
        self._fast = fast
        self._site = Site()
        self._fleet: Group | None = None

    def reset(self) -> None:
        """An empty broker and no records."""
        for path in self._fast.iterdir():
            path.unlink()
        self._site = self.broker.reset()

    def fleet(
        self, *, procs: int | None = None, one_main: bool = False, env: Mapping[str, str] | None = None
    ) -> Group:
        start = Fleet(
            procs=procs or self.plan.procs,
            slots=self.plan.slots,
            one_main=one_main,
            endpoint=self._site.endpoint,
            redis=self._site.redis,
            postgres=self._site.postgres,
            folder=str(self._folder),
        )
        commands = self.system.commands(self.system.venv, start)
        self._fleet = Group(commands, env=self._env(env), cwd=ROOT, log=self._folder / "fleet.log")
        return self._fleet

    def produce(self, *arguments: object) -> dict[str, float]:
        with self.producing(*arguments) as producer:
            return self.report(producer)

    @contextlib.contextmanager
    def producing(self, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """It goes on beside what the block does, and not beyond it."""
        python = self.system.venv.program("python")
        words = [str(argument) for argument in arguments]
        command = [python, "-m", "benchmarks.apps.producer", self.system.module, *words]
        with (self._folder / "producer.log").open("ab") as log:
            producer = subprocess.Popen(
                command,
                env=self._env(self._site.client_env),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield producer
        finally:
            producer.kill()
            producer.communicate()

    def report(self, producer: subprocess.Popen[str]) -> dict[str, float]:
        try:
            output, _ = producer.communicate(timeout=_PRODUCER_S)
        except subprocess.TimeoutExpired:
            producer.kill()
            raise RuntimeError(f"the producer did not end within {_PRODUCER_S:.0f} s") from None
        if producer.returncode:
            raise RuntimeError(f"the producer failed: {self.log_tail('producer')}")
        report: dict[str, float] = json.loads(output.splitlines()[-1])
        return report

    def fill(self, jobs: int, *, first: int = 0) -> None:
        """As fast as this system's client goes."""
        self.produce("enqueue", "--jobs", jobs, "--first", first, "--way", self.system.ways[-1])

    def at_once(self) -> Way:
        return "sixteen" if "sixteen" in self.system.ways else "one"

    def wait_for(self, jobs: int) -> None:
        """Until so many jobs have recorded something, or nothing happens any more.

        Raises Unfinished when the plan's time is up while jobs still come, RuntimeError when nobody is left who
        could run one.
        """
        begun = moved = time.monotonic()
        seen = 0
        while seen < jobs:
            time.sleep(POLL_S)
            now, count = time.monotonic(), self.records.count()
            if count > seen:
                seen, moved = count, now
            if now - moved > self.plan.stall_s:
                return
            if now - moved > _DEAD_S and self._fleet is not None and self._fleet.ended():
                raise RuntimeError(f"the fleet ended by itself after {seen} of {jobs} jobs")
            if now - begun > self.plan.cap_s:
                raise Unfinished(f"{seen} of {jobs} jobs within {self.plan.cap_s:.0f} s")
        time.sleep(_LATE_DUPLICATES_S)

    def wait_for_kind(self, kind: Kind, records: int, timeout_s: float) -> bool:
        return wait_until(lambda: len(self.records.read(kind)) >= records, timeout_s, every_s=POLL_S)

    def settle(self, procs: int, *, idle_s: float = 1.0) -> None:
        """Every worker has run something, and now has nothing to do. Leaves no records."""
        if self._site.port:
            wait_until(lambda: listens(self._site.port), _START_S, every_s=0.02)
        until = time.monotonic() + 6.0
        sent = 0
        while time.monotonic() < until:
            self.produce("enqueue", "--jobs", _WARM_JOBS, "--first", sent)
            sent += _WARM_JOBS
            wait_until(lambda expected=sent: self.records.count() >= expected, 30.0)  # type: ignore[misc]
            if len({record.pid for record in self.records.read()}) >= procs:
                break
        time.sleep(idle_s)
        self.records.clear()

    def log_tail(self, name: str, size: int = 600) -> str:
        log = self._folder / f"{name}.log"
        return log.read_text(errors="replace")[-size:].strip() if log.exists() else "(no log)"

    def rest(self) -> None:
        """Nothing of this system runs while another one is measured."""
        self.broker.close()

    def _env(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {
            **os.environ,
            **self._site.env,
            FILE_VARIABLE: str(self.records.path),
            "BENCH_SLOTS": str(self.plan.slots),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **(more or {}),
        }
