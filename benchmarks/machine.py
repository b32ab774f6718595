"""On what a run was made, in words."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def describe() -> dict[str, str]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "load": f"{os.getloadavg()[0]:.2f} at the start",
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = "-" not in git("describe", "--always", "--dirty=-changed")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("" if changed else ", changed")
