"""What `ps` shows. Figures only: no arguments, no secrets."""

from __future__ import annotations

import contextlib


def set_title(name: str, text: str) -> None:
    # Missing where it does not build (some minimal images): a title is not worth a failure.
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"{name}: {text}")


def reserve_room() -> None:
    """To be called before much of the environment is changed: a title is written over where it was at the start."""
    with contextlib.suppress(ImportError):
        from setproctitle import getproctitle

        getproctitle()


def supervisor_title(workers: int, generation: int) -> str:
    return f"supervisor [{workers} worker{'' if workers == 1 else 's'}, gen {generation}]"


def worker_title(slot: int, generation: int, busy: int, slots: int) -> str:
    return f"worker {slot} gen {generation} [{busy}/{slots} busy]"
