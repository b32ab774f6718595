"""Lines of several processes on one pipe stay whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

WRITER = """
import logging, sys
from istos_worker.observability.logs import Logs
with Logs(format_="json", lock=sys.argv[2]).kept(sys.argv[1]):
    for number in range(40):
        logging.getLogger("app").warning("%s", sys.argv[1] * (20_000 if number % 2 else 3), extra={"number": number})
"""


def test_long_lines_of_four_processes_at_once_all_parse(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    read, write = os.pipe()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, name, str(lock)], stderr=write) for name in "abcd"
    ]
    os.close(write)

    with os.fdopen(read, "rb") as lines:
        parsed = [json.loads(line) for line in lines]

    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    assert len(parsed) == 160
    assert {len(line["message"]) for line in parsed} == {3, 20_000}


def test_what_json_cannot_carry_is_still_one_line_that_parses() -> None:
    script = """
import logging
from istos_worker.observability.logs import Logs

class Shy:
    def __repr__(self):
        raise ValueError

deep = []
for _ in range(3000):
    deep = [deep]
with Logs(format_="json").kept("p"):
    log = logging.getLogger("app")
    log.error("odd fields", extra={"shy": Shy(), "deep": deep, "name\\udcff": 1})
    log.error("two\\nlines \\udc80", extra={"odd": {1, 2}, "big": 2**80})
    log.error("%d arguments", "wrong")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("failed")
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=True)
    parsed = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(parsed) == 4
    assert isinstance(parsed[0]["pid"], int)
    assert "ValueError" in parsed[0]["shy"]
    assert "ZeroDivisionError" in parsed[3]["exception"]


def test_a_pipe_that_nobody_reads_blocks_nobody() -> None:
    script = """
import logging
from istos_worker.observability.logs import Logs
with Logs().kept("p"):
    for _ in range(30_000):
        logging.getLogger("app").warning("x" * 100)
print("done")
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read() == b"done\n"
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait() == 0


def test_lines_come_back_whole_when_there_is_room_again(tmp_path: Path) -> None:
    script = """
import logging, resource
from istos_worker.observability.logs import Logs
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
log = logging.getLogger("app")
with Logs().kept("p") as writer:
    log.warning("before")
    writer.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    for _ in range(5):
        log.warning("x" * 100)
    writer.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.warning("after")
"""
    with (tmp_path / "log").open("wb") as file:
        subprocess.run([sys.executable, "-c", script], stderr=file, check=True)

    first, *_, after, lost = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("p: before")
    assert after.startswith("20")
    assert after.endswith("p: after")
    assert "p: 4 log lines were lost" in lost


def test_a_process_that_says_nothing_has_no_thread_for_it_and_one_that_does_loses_no_line() -> None:
    script = """
import logging, threading
from istos_worker.observability.logs import Logs
with Logs().kept("p"):
    print(threading.active_count())
    logging.getLogger("app").warning("first")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert done.stderr.endswith("WARNING p: first\n")


def test_an_application_that_configures_logging_anew_does_not_silence_the_process() -> None:
    script = """
import logging, logging.config
from istos_worker.observability.logs import Logs
with Logs().kept("p") as writer:
    logging.getLogger("app").warning("before")
    writer.flush()
    own = {"version": 1, "disable_existing_loggers": False, "loggers": {"app": {"level": "INFO"}}}
    logging.config.dictConfig(own)
    logging.getLogger("app").info("after")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line.partition(" p: ")[2] for line in done.stderr.splitlines()] == ["before", "after"]
