"""Where each system's own Python environment is, and how it is made. Knows pip; not what is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "ISTOS_BENCH_VENVS"


def cache() -> Path:
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "istos-worker-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """`packages` empty: the environment this command runs in."""

    name: str
    packages: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"ISTOS_BENCH_VENV_{self.name.upper()}"

    @property
    def folder(self) -> Path:
        if not self.packages:
            return Path(sys.prefix)
        return Path(os.environ.get(self.variable) or cache() / self.name)

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def exists(self) -> bool:
        return Path(self.program("python")).exists()

    def install(self) -> None:
        if not self.packages:
            return
        if not self.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        subprocess.run([self.program("pip"), "install", "--quiet", *self.packages], check=True)

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Of those that are there."""
        done = subprocess.run(
            [self.program("python"), "-c", _ASK, *packages], capture_output=True, text=True, check=True
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found


_ASK = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""

OURS = Venv(name="ours")
ISTOS = Venv(name="istos", packages=("istos==0.3.4", "sqlalchemy[asyncio]", "aiosqlite"))
PEERS = Venv(
    name="peers",
    packages=(
        "dramatiq[redis]",
        "huey[redis]",
        "saq[redis]",
        "celery[redis]",
        "taskiq<0.13",  # taskiq-redis 1.2.2 does not import with 0.13
        "taskiq-redis",
        "rq",
        "streaq",
        "procrastinate",
        "pgqueuer",
        "asyncpg",
        "psycopg[binary]",
        "psycopg_pool",
    ),
)
ARQ = Venv(name="arq", packages=("arq",))
"""Of its own: it needs an older Redis client than the others."""
ALL = (OURS, ISTOS, PEERS, ARQ)
