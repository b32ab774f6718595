"""Redis and PostgreSQL of our own: on a free loopback port, in a temporary folder, ended by their pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.processes import wait_until

REDIS_VARIABLE = "ISTOS_BENCH_REDIS_SERVER"
POSTGRES_VARIABLE = "ISTOS_BENCH_POSTGRES_BIN"
_START_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def redis_server() -> str | None:
    return os.environ.get(REDIS_VARIABLE) or shutil.which("redis-server")


def postgres_bin() -> Path | None:
    """The folder with initdb, postgres and psql; Debian keeps one for each major version."""
    if named := os.environ.get(POSTGRES_VARIABLE):
        return Path(named)
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


class Service:
    """A server process of ours and its folder."""

    def __init__(self, *, user: str | None = None) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="istos-bench-"))
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        if user:
            shutil.chown(self.folder, user, user)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _start(self, command: list[str]) -> None:
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                user=self._user,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self.folder,
            )
        if not wait_until(lambda: listens(self.port), _START_S, every_s=0.05):
            said = log.read_text(errors="replace")[-800:]
            self.stop()
            raise RuntimeError(f"{command[0]} did not listen within {_START_S:.0f} s: {said}")

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(Service):
    """`sync`: "none" (no log at all, Debian's and Redis' default but for snapshots), "everysec", "always"."""

    def __init__(self, program: str, *, sync: str = "none") -> None:
        super().__init__()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.policy = "not synced" if sync == "none" else f"AOF, fsync {sync}"
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", str(self.folder)]
        if sync != "none":
            options += ["--appendonly", "yes", "--appendfsync", sync]
        self._start([program, *options])

    def empty(self) -> None:
        self._ask(b"FLUSHALL")

    def version(self) -> str:
        lines = self._ask(b"INFO server").decode().splitlines()
        return next(line.split(":")[1] for line in lines if line.startswith("redis_version:"))

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(command + b"\r\n")
            time.sleep(0.01)
            return connection.recv(65536)


class Postgres(Service):
    """Defaults: fsync on, synchronous_commit on. It refuses to run as root, so then as `postgres`."""

    policy = "synced at each commit"

    def __init__(self, binaries: Path) -> None:
        super().__init__(user="postgres" if os.geteuid() == 0 else None)
        self._binaries = binaries
        data = self.folder / "data"
        self._run("initdb", "-D", str(data), "-A", "trust", "-U", "bench", "--locale=C.UTF-8", "-E", "UTF8")
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = '127.0.0.1'\nport = {self.port}\nmax_connections = 200\n")
            settings.write(f"unix_socket_directories = '{self.folder}'\n")
        self._start([str(binaries / "postgres"), "-D", str(data)])
        wait_until(self._answers, _START_S, every_s=0.1)

    def url(self, database: str) -> str:
        return f"postgresql://bench@127.0.0.1:{self.port}/{database}"

    def sql(self, database: str, *statements: str) -> str:
        arguments = [argument for statement in statements for argument in ("-c", statement)]
        return self._run("psql", "-qAt", "-v", "ON_ERROR_STOP=1", self.url(database), *arguments)

    def version(self) -> str:
        return self.sql("postgres", "show server_version").split()[0]

    def _answers(self) -> bool:
        try:
            return bool(self.version())
        except RuntimeError:
            return False

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()[-800:]}")
        return done.stdout
