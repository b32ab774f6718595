"""A fleet small enough to hold in the head: what the crash tests start, as supervisor and as zygote.

Run as `program.py supervisor` it reads settings from the environment variable FLEET (JSON) and runs the
supervisor; as `program.py zygote` it is the zygote, whose "application" is the file named by APP; as
`program.py companion` it is the companion.

All of them live by clocks that run ahead by what the file CLOCKS says, in seconds of `monotonic boottime`: so a test
lets hours pass at once for the whole machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import early

early.hold_signals()

if TYPE_CHECKING:  # each of the three imports only what it needs: they are started some five hundred times
    from supervisor.link import WorkerLink
    from supervisor.obituary import Obituary
    from supervisor.orders import Body
    from supervisor.settings import Settings
    from supervisor.status import Status

JOURNAL = Path(os.environ["JOURNAL"])
CLOCKS = JOURNAL.with_name("CLOCKS")


def run_ahead() -> None:
    """The monotonic clock of Linux stands still in a suspend, that of others runs on; boottime always runs on."""
    monotonic, clock_gettime = time.monotonic, time.clock_gettime

    def ahead_s(clock: int) -> float:
        try:
            return float(CLOCKS.read_text().split()[clock])
        except FileNotFoundError:
            return 0.0

    time.monotonic = lambda: monotonic() + ahead_s(0)
    time.clock_gettime = lambda clock: clock_gettime(clock) + ahead_s(int(clock == time.CLOCK_BOOTTIME))


if os.environ.get("RUNS_AHEAD"):
    run_ahead()


def note(event: str, **facts: Any) -> None:
    """One line in the journal the test reads; O_APPEND keeps the lines of many processes whole."""
    line = json.dumps({"event": event, "pid": os.getpid(), **facts}).encode() + b"\n"
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line)
    os.close(fd)


class Hooks:
    def on_exit(self, obituary: Obituary) -> Body | None:
        note(
            "exit",
            slot=obituary.slot,
            dead=obituary.pid,
            cause=obituary.cause,
            held=list(obituary.held),
            expected=obituary.expected,
            done=obituary.done,
            generation=obituary.generation,
        )
        return None if obituary.expected else {"bury": obituary.pid}

    def metrics(self, status: Status) -> str:
        return f"workers {len(status.workers)}\n"


def settings() -> Settings:
    from supervisor.settings import Command, Companion, Recycling, Restarts, Settings, Timeouts

    wanted = json.loads(os.environ["FLEET"])
    me = (sys.executable, __file__)
    companion = None
    if "companion" in wanted:
        options = wanted.pop("companion")
        argv = tuple(options.pop("argv", (*me, "companion")))
        companion = Companion(command=Command(argv=argv), title="owner", **options)
    for name in ("control", "pidfile"):
        if name in wanted:
            wanted[name] = Path(wanted[name])
    return Settings(
        zygote=Command(argv=(*me, "zygote")),
        companion=companion,
        timeouts=Timeouts(**wanted.pop("timeouts", {})),
        recycling=Recycling(**wanted.pop("recycling", {})),
        restarts=Restarts(**wanted.pop("restarts", {})),
        **wanted,
    )


APPLICATION: dict[str, Any] = {}


def load() -> None:
    APPLICATION.update(runpy.run_path(os.environ["APP"]))


def child(link: WorkerLink) -> int:
    note("born", slot=link.slot, generation=link.generation)
    main = APPLICATION.get("main", serve)
    return int(asyncio.run(main(link)) or 0)


async def serve(link: WorkerLink) -> int:
    """Ready at once; "works" on one unit for as long as the file BUSY exists."""
    from supervisor.orders import Drain, HandBack, Message, Orphaned

    async with link:
        link.name_self(f"wire-{os.getpid()}")
        report(link)
        note("rising")
        link.ready()
        note("ready", slot=link.slot, generation=link.generation)
        async for order in link.orders():
            note("order", order=type(order).__name__)
            match order:
                case Drain() | Orphaned():
                    await work_done()
                    break
                case HandBack():
                    break
                case Message(body=body):
                    note("message", body=dict(body))
                    link.acknowledge(order)
    note("left", slot=link.slot)
    return 0


async def work_done() -> None:
    while busy():  # noqa: ASYNC110 the test is another process
        await asyncio.sleep(0.02)


def report(link: WorkerLink) -> None:
    held = [f"unit-{link.slot}"] if busy() else []
    link.report(done=0, busy=len(held), slots=1, held=held)


def busy() -> bool:
    return Path(os.environ["JOURNAL"]).with_name("BUSY").exists()


async def accompany() -> int:
    from supervisor.companion_link import companion_link
    from supervisor.orders import Drain, HandBack, Message, Orphaned

    async with companion_link() as link:
        note("companion ready")
        link.ready()
        async for order in link.orders():
            note("companion order", order=type(order).__name__)
            match order:
                case Drain() | Orphaned() | HandBack():
                    break
                case Message(body=body):
                    note("message", body=dict(body))
                    link.acknowledge(order)
    note("companion left")
    return 0


if __name__ == "__main__":
    match sys.argv[1]:
        case "supervisor":
            from supervisor.main import run

            code = run(settings(), Hooks())
        case "zygote":
            from supervisor.zygote import serve_zygote

            code = serve_zygote(load=load, child=child)
        case _:
            code = asyncio.run(accompany())
    sys.exit(code)
