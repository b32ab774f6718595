"""Those who look at the supervisor all the time, probes and systemd, are answered cheaply and in time."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.endpoint import Endpoint
from supervisor.ledger import Ledger
from supervisor.link import beat_every_s
from supervisor.notify import Notifier
from supervisor.picture import Picture
from supervisor.settings import Restarts
from supervisor.status import Status


class Unmeasured:
    """A recycler that must not be asked."""

    def size(self, _: object) -> int:
        raise AssertionError("the kernel was made to add up a worker's pages")


def worker(slot: int) -> Any:
    stage = SimpleNamespace(value="ready")
    return SimpleNamespace(
        slot=slot, serial=slot, pid=1, generation=1, stage=stage, ordered_at=0.0, cell=slot
    )


def picture(recycler: Any) -> Picture:
    figures = SimpleNamespace(done=7, busy=0, slots=1, serving=True, label="", held=())
    board = SimpleNamespace(read=lambda _: figures)
    ground = SimpleNamespace(
        settings=SimpleNamespace(name="test"), pid=1, shared=SimpleNamespace(board=board), board=board
    )
    ledger = Ledger(policy=Restarts(), ever_ready=True)
    ledger.count("done", 100)
    crew = SimpleNamespace(
        ground=ground, workers=[worker(0), worker(1)], wanted=2, trusted=1, quiet=False, ledger=ledger
    )
    return Picture(
        crew=cast(Any, crew),
        keeper=None,
        reloading=cast(Any, SimpleNamespace(under_way=False, last_error=None)),
        stopping=cast(Any, SimpleNamespace(under_way=False)),
        recycler=recycler,
    )


async def test_a_readiness_probe_measures_no_memory() -> None:
    def metrics(_: Status) -> str:
        raise AssertionError("nobody asked for metrics")

    endpoint = Endpoint("127.0.0.1", 0, picture=picture(Unmeasured()), metrics=metrics)
    async with endpoint:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")


def test_systemd_is_told_without_measuring_memory(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        Notifier(address=str(tmp_path / "notify")).tell("running", 0, picture(Unmeasured()).glance, 0.0)
        told = systemd.recv(4096).decode()
    assert "STATUS=running, gen 1: 2/2 workers ready" in told


def test_systemd_hears_of_a_reload_that_failed_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        notifier = Notifier(address=str(tmp_path / "notify"))
        notifier.tell("running", 0, picture(Unmeasured()).glance, 0.0)
        assert b"READY=1" in systemd.recv(4096)
        notifier.tell("running", 1, picture(Unmeasured()).glance, 1.0)
        assert systemd.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert b"READY=1" in systemd.recv(4096)


def test_totals_count_the_living_and_the_gone() -> None:
    assert picture(SimpleNamespace(size=lambda _: 5)).take().totals.done == 100 + 2 * 7


@pytest.mark.parametrize("watchdog_s", [0.1, 0.6, 2.5, 30.0])
def test_the_watchdog_hears_more_than_twice_an_interval_however_short(
    tmp_path: Path, watchdog_s: float
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        notifier = Notifier(address=str(tmp_path / "notify"), watchdog_s=watchdog_s)
        now, words = 1000.0, list[float]()
        while now < 1000.0 + 3 * watchdog_s:
            notifier.tell("running", 0, picture(Unmeasured()).glance, now)
            if b"WATCHDOG=1" in systemd.recv(4096):
                words.append(now)
            now = notifier.next_word(now)  # the supervisor sleeps no longer than that

    assert len(words) >= 9
    assert all(b - a < watchdog_s / 2 for a, b in itertools.pairwise(words))


@pytest.mark.parametrize(("stall_s", "every_s"), [(None, 1.0), (30.0, 1.0), (1.5, 0.5), (0.001, 0.05)])
def test_a_worker_beats_some_times_within_its_stall_timeout(stall_s: float | None, every_s: float) -> None:
    assert beat_every_s(stall_s) == every_s
