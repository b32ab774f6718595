"""kill -9 of a process that commits to a SQLite file: what it reported is there, whole, and nothing half."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from istos_worker.errors import StorageUnavailableError
from istos_worker.storage import Row, WriteBatch, open_storage

pytestmark = pytest.mark.crash

QUEUE = "jobs/email"
ROWS_PER_BATCH = 5
MOMENTS = 32


def batch(number: int) -> WriteBatch:
    """Batch `number` puts rows, claims those of the batch before, forgets all but one of those before that."""
    return WriteBatch(
        rows=[(seq, head(number, "ready"), body(seq)) for seq in seqs(number)]
        + [(seq, head(number - 1, "leased"), None) for seq in seqs(number - 1)],
        forgotten=list(seqs(number - 2))[1:],
        notes={"last": b"%d" % number, f"tick/{number}": b"x", f"tick/{number - 3}": None},
    )


def rows_after(last: int) -> list[Row]:
    """What the medium holds when batches 1 to `last` are there."""
    rows = []
    for number in range(1, last + 1):
        kept = list(seqs(number)) if number > last - 2 else list(seqs(number))[:1]
        state = "ready" if number == last else "leased"
        rows += [Row(seq, head(number, state), body(seq)) for seq in kept]
    return rows


def seqs(number: int) -> range:
    return range(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH) if number > 0 else range(0)


def head(number: int, state: str) -> bytes:
    return json.dumps({"batch": number, "state": state}).encode()


def body(seq: int) -> bytes:
    return b"%d," % seq * (2000 if seq % 11 == 0 else 5)


async def commit_for_ever(url: str) -> None:
    """The child: goes on where the file ends, one line per commit that returned."""
    print("up", flush=True)
    queue = await open_storage(url).open_queue(QUEUE)
    number = int((await queue.notes()).get("last", b"0"))
    async for _ in queue.rows():
        pass
    while True:
        number += 1
        await queue.commit(batch(number))
        print(number, flush=True)


def child(url: str, what: str = "commit") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, what, url], stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Everything it had reported and was not read yet."""
    process.kill()
    assert process.stdout is not None
    rest = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    return rest


async def test_every_acknowledged_batch_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    acknowledged = 0
    for moment in range(MOMENTS):
        process = child(url)
        assert process.stdout is not None
        reports = [process.stdout.readline().strip() for _ in range(rng.choice((1, 2, 5, 30)))]
        time.sleep(rng.random() * 0.004)  # noqa: ASYNC251 - the moment is the input of this test
        reports += kill(process)
        acknowledged = max([acknowledged, *(int(report) for report in reports if report.isdigit())])

        storage = open_storage(url)
        queue = await storage.open_queue(QUEUE)
        notes = await queue.notes()
        rows = [row async for chunk in queue.rows() for row in chunk]
        await storage.aclose()

        last = int(notes.get("last", b"0"))
        context = f"seed {seed}, moment {moment}, acknowledged {acknowledged}, found {last}"
        assert acknowledged <= last <= acknowledged + 1, context
        assert rows == rows_after(last), context
        ticks = {f"tick/{number}" for number in range(max(1, last - 2), last + 1)}
        assert set(notes) - {"last"} == ticks, context
        acknowledged = last


async def test_a_second_owner_process_is_refused_and_a_killed_one_has_let_go(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    owner = child(url)
    assert owner.stdout is not None
    assert [owner.stdout.readline().strip() for _ in range(2)] == ["up", "1"]

    with pytest.raises(
        StorageUnavailableError, match=rf"queues\.db already has an owner: process {owner.pid}"
    ):
        await open_storage(url).open_queue("another")

    kill(owner)
    storage = open_storage(url)
    queue = await storage.open_queue(QUEUE)
    assert int((await queue.notes())["last"]) >= 1
    await storage.aclose()


async def test_a_child_that_the_owner_forked_does_not_keep_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    owner = child(url, "fork")
    assert owner.stdout is not None
    orphan = int(owner.stdout.readline())
    owner.kill()
    owner.wait()

    storage = open_storage(url)
    await storage.open_queue(QUEUE)

    os.kill(orphan, 0)  # it is still there
    os.kill(orphan, signal.SIGKILL)
    owner.stdout.close()
    await storage.aclose()


async def own_and_fork(url: str) -> None:
    await open_storage(url).open_queue(QUEUE)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    print(pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(commit_for_ever(sys.argv[2]) if sys.argv[1] == "commit" else own_and_fork(sys.argv[2]))
