"""What `ps` shows. Figures only: no arguments, no secrets."""

from __future__ import annotations

try:
    from setproctitle import getproctitle, setproctitle
except ImportError:  # it does not build in some minimal images, and a title is not worth a failure

    def setproctitle(title: str) -> None:
        pass

    def getproctitle() -> str:
        return ""


def set_title(name: str, text: str) -> None:
    setproctitle(f"{name}: {text}")


def reserve_room() -> None:
    """To be called before much of the environment is changed: a title is written over where it was at the start."""
    getproctitle()


def supervisor_title(workers: int, generation: int) -> str:
    return f"supervisor [{workers} worker{'' if workers == 1 else 's'}, gen {generation}]"


def worker_title(slot: int, generation: int, busy: int, slots: int) -> str:
    return f"worker {slot} gen {generation} [{busy}/{slots} busy]"
