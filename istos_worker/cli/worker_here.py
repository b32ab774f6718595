"""What this machine and this parent process imply: CPUs usable here, a platform's patience, where sockets go.
Reads /proc and the environment; decides nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HONCHO_DRAIN_S = 4.0
DEFAULT_DRAIN_S = 25.0
_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPUs by affinity and cgroup quota, at least 1: what `--procs auto` means."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system (macOS)
        affinity = os.cpu_count() or 1
    quota = cgroup_cpus(_CGROUP)
    return max(1, affinity if quota is None else min(affinity, int(quota + 0.5)))


def cgroup_cpus(root: Path) -> float | None:
    """CPUs' worth of time that the cgroup grants; None where it sets no limit."""
    with contextlib.suppress(OSError, ValueError):  # version 2
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # version 1
        quota_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / int((root / "cpu/cpu.cfs_period_us").read_text())
    return None


def default_drain_s(env: Mapping[str, str]) -> float:
    """honcho kills 5 s after its TERM, whatever it is told."""
    return HONCHO_DRAIN_S if is_under_honcho(env) else DEFAULT_DRAIN_S


def is_under_honcho(env: Mapping[str, str]) -> bool:
    return "HONCHO_PROCESS_NAME" in env or any("honcho" in words for words in _ancestors())


def _ancestors(depth: int = 4) -> Iterator[str]:
    """Program names of the nearest parents, as far as /proc tells: honcho starts its commands by a shell."""
    pid = os.getppid()
    for _ in range(depth):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        yield " ".join(os.path.basename(word.decode(errors="replace")) for word in command[:2])
        pid = int(status.rpartition(")")[2].split()[1])
        if pid <= 1:
            return


@dataclass(frozen=True, slots=True)
class RuntimeDir:
    """A private folder of one running fleet, locked for as long as it runs: sockets, figures, the log's lock."""

    path: Path

    @property
    def control(self) -> Path:
        return self.path / "control.sock"

    @property
    def owner_endpoint(self) -> str:
        return f"unixsock-stream/{self.path / 'owner.sock'}"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def log_lock(self) -> Path:
        return self.path / "log.lock"


@contextlib.contextmanager
def runtime_dir() -> Iterator[RuntimeDir]:
    """Makes the folder, and removes those of fleets that died without doing so."""
    root = runtime_root()
    _sweep(root)
    path = root / f"{os.getpid()}-{os.urandom(4).hex()}"
    path.mkdir(mode=0o700)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        (path / "log.lock").touch()
        (path / "figures").mkdir()
        yield RuntimeDir(path)
    finally:
        _remove(path)
        os.close(lock)


def runtime_root() -> Path:
    """Where all fleets of this user keep their folders. Raises OSError, also if another user has taken it."""
    root = _root_path(os.environ)
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as failed:
        raise OSError(failed.errno, f"no place for sockets: {failed.strerror}", str(root)) from failed
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(errno.EPERM, "remove this, it must be a folder of this user with mode 0700", str(root))
    return root


def _root_path(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_RUNTIME_DIR")
    root = Path(base) / "istos-worker" if base else Path(_temporary(env)) / f"istos-worker-{os.getuid()}"
    # A socket's path must fit into 108 bytes (unix(7)), 104 on macOS.
    return root if len(os.fsencode(root)) <= 60 else Path(f"/tmp/istos-worker-{os.getuid()}")


def _temporary(env: Mapping[str, str]) -> str:
    """As tempfile.gettempdir(), which takes as long to import as all of this module."""
    named = (env.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return next((folder for folder in named if folder and os.access(folder, os.W_OK | os.X_OK)), "/tmp")


def live_controls() -> list[Path]:
    """Control sockets of the fleets of this user that are running, but for those that `--control` put elsewhere."""
    running = [path for path in _folders(runtime_root()) if not _is_abandoned(path)]
    return sorted(path / "control.sock" for path in running if (path / "control.sock").exists())


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def _sweep(root: Path) -> None:
    for path in _folders(root):
        if _is_abandoned(path):
            _remove(path)


def _remove(path: Path) -> None:
    import shutil  # half a megabyte and 10 ms, at the end of a fleet instead of its start

    shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
