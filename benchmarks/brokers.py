"""What stands between a producer and a fleet: emptied before each sample, watched for its own cost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.processes import Group, family, pss_mb, wait_until
from benchmarks.services import Postgres, Redis, Service, free_port, listens
from benchmarks.systems import QUEUE, System
from istos_worker.wire.local_socket import SWITCH

ROOT = Path(__file__).resolve().parents[1]
_OWNER_START_S = 15.0
_DECLARED_S = 0.5
"""From listening to having declared the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the broker is to be found, after it was emptied."""

    port: int = 0
    """Where an owner listens, and `endpoint` in Zenoh's words."""
    endpoint: str = ""
    redis: str = ""
    postgres: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """For fleet and producer alike."""
    client_env: Mapping[str, str] = field(default_factory=dict)
    """For the producer alone."""


class Broker(Protocol):
    policy: str
    """What a reply to an enqueue or an ack promises."""

    def reset(self) -> Site: ...
    def cpu_s(self) -> float: ...
    def pss_mb(self) -> float: ...
    def close(self) -> None: ...


class _Served:
    """A database server that several systems share, one after the other."""

    def __init__(self, service: Service, policy: str) -> None:
        self.policy = policy
        self._pid = service.pid

    def cpu_s(self) -> float:
        return sum(stat.cpu_s for stat in family([self._pid]))

    def pss_mb(self) -> float:
        return pss_mb(stat.pid for stat in family([self._pid]))

    def close(self) -> None:
        """The services end their servers themselves."""


class RedisBroker(_Served):
    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, f"Redis, {redis.policy}")
        self._redis = redis

    def reset(self) -> Site:
        self._redis.empty()
        return Site(redis=self._redis.url, env={"BENCH_REDIS": self._redis.url})


_SCHEMA: dict[str, tuple[str, ...]] = {
    "procrastinate": (
        "procrastinate",
        "--app",
        "benchmarks.apps.peer_procrastinate.app",
        "schema",
        "--apply",
    ),
    "pgqueuer": ("pgq", "install"),
}
_EMPTY = {
    "procrastinate": "TRUNCATE procrastinate_jobs, procrastinate_workers RESTART IDENTITY CASCADE",
    "pgqueuer": "TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics",
}


class PostgresBroker(_Served):
    """A database of the system's own, with that system's schema."""

    def __init__(self, postgres: Postgres, system: System) -> None:
        super().__init__(postgres, f"PostgreSQL, {postgres.policy}")
        self._postgres = postgres
        self._database = system.name
        self._url = postgres.url(system.name)
        postgres.sql("postgres", f"CREATE DATABASE {system.name}")
        program, *arguments = _SCHEMA[system.name]
        if program == "pgq":
            arguments = ["--pg-dsn", self._url, *arguments]
        env = {**os.environ, "BENCH_POSTGRES": self._url, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [system.venv.program(program), *arguments], env=env, cwd=ROOT, check=True, capture_output=True
        )

    def reset(self) -> Site:
        self._postgres.sql(self._database, _EMPTY[self._database], "VACUUM ANALYZE")
        return Site(postgres=self._url, env={"BENCH_POSTGRES": self._url})


class OwnerBroker:
    """A queue owner in a process of its own: a new one, on a new port, with empty storage, at each reset."""

    def __init__(
        self,
        policy: str,
        folder: Path,
        command: Callable[[str, Path], list[str]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env`: for the owner, the fleet and the producer."""
        self.policy = policy
        self._env = env or {}
        self._folder = folder
        self._command = command
        self._owner: Group | None = None

    def reset(self) -> Site:
        self.close()
        storage = self._folder / "storage"
        shutil.rmtree(storage, ignore_errors=True)
        storage.mkdir()
        port = free_port()
        site = mesh_site(port, self._env)
        env = {**os.environ, **site.env, "PYTHONPATH": str(ROOT)}
        if "sqlite" in self.policy.lower():
            env["BENCH_DATABASE"] = str(storage / "queue.db")
        command = self._command(site.endpoint, storage / "queue.db")
        self._owner = Group([command], env=env, cwd=ROOT, log=self._folder / "owner.log")
        if not wait_until(lambda: listens(port), _OWNER_START_S, every_s=0.02):
            raise RuntimeError(f"the owner did not listen: {_tail(self._folder / 'owner.log')}")
        time.sleep(_DECLARED_S)
        return site

    def cpu_s(self) -> float:
        return self._owner.cpu_s() if self._owner else 0.0

    def pss_mb(self) -> float:
        return self._owner.pss_mb() if self._owner else 0.0

    def close(self) -> None:
        if self._owner is not None:
            self._owner.stop()
            self._owner = None


class EmbeddedBroker:
    """The fleet brings its owner along: nothing to start, nothing to weigh beside it."""

    policy = "SQLite, synced before each reply"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reset(self) -> Site:
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        return mesh_site(free_port())

    def cpu_s(self) -> float:
        return 0.0

    def pss_mb(self) -> float:
        return 0.0

    def close(self) -> None:
        shutil.rmtree(self._folder / "data", ignore_errors=True)


def mesh_site(port: int, env: Mapping[str, str] | None = None) -> Site:
    endpoint = f"tcp/127.0.0.1:{port}"
    client = {
        "ISTOS_ZENOH_MODE": "client",
        "ISTOS_ZENOH_CONNECT_ENDPOINTS": json.dumps([endpoint]),
        "ISTOS_ZENOH_MULTICAST_SCOUTING": "false",
    }
    return Site(
        port=port, endpoint=endpoint, env={"BENCH_ENDPOINT": endpoint, **(env or {})}, client_env=client
    )


def owner_of_ours(system: System, folder: Path) -> OwnerBroker:
    def command(endpoint: str, database: Path) -> list[str]:
        storage = f"sqlite:///{database}" if system.broker == "sqlite" else "memory:"
        program = system.venv.program("istos-queue")
        return [program, "serve", "--queue", QUEUE, "--storage", storage, "--listen", endpoint]

    policy = "SQLite, synced before each reply" if system.broker == "sqlite" else "memory"
    return OwnerBroker(policy, folder, command, {SWITCH: "off"} if system.broker == "mesh" else None)


def owner_of_istos(system: System, folder: Path) -> OwnerBroker:
    def command(endpoint: str, database: Path) -> list[str]:
        return [system.venv.program("python"), "-m", "benchmarks.apps.peer_istos", "owner"]

    policy = "memory" if system.broker == "istos" else "SQLite by SQLAlchemy, synced at each commit"
    return OwnerBroker(policy, folder, command)


def _tail(log: Path, size: int = 800) -> str:
    return log.read_text(errors="replace")[-size:].strip() if log.exists() else "(no log)"
