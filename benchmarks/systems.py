"""The systems that are compared: how each fleet is started, and what its figures must be read beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.venvs import ARQ, ISTOS, OURS, PEERS, Venv

Way = Literal["one", "loop", "sixteen", "bulk"]
"""`loop`: one by one from an event loop, for a system that has a blocking client too."""
Broker = Literal["memory", "mesh", "sqlite", "embedded", "istos", "istos-sqlite", "redis", "postgres"]
Commands = list[list[str]]

QUEUE = "bench/jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One start of a system's workers. The addresses are those of its broker; unused ones are empty."""

    procs: int
    slots: int
    one_main: bool = False
    """All slots in one main process (the graceful stop looks at one process' jobs)."""
    endpoint: str = ""
    redis: str = ""
    postgres: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Jobs a second, roughly: only to choose how many jobs a phase gets. Never reported."""

    drain: float
    one: float
    loop: float = 0.0
    sixteen: float = 0.0
    bulk: float = 0.0

    def of(self, way: Way) -> float:
        return {"one": self.one, "loop": self.loop, "sixteen": self.sixteen, "bulk": self.bulk}[way]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    title: str
    venv: Venv
    module: str
    broker: Broker
    commands: Callable[[Venv, Fleet], Commands]
    pace: Pace
    packages: tuple[str, ...]
    """The first is the system itself; all of them are listed with their versions."""
    program: str
    """What must be in the environment for this system to count as installed."""
    jobs_at_once: int | None = None
    """Of one main process, where that is not the fleet's slots."""
    quick: bool = False
    """Part of `--quick`: ours and the best of the peers."""

    @property
    def ours(self) -> bool:
        return self.venv is OURS

    @property
    def ways(self) -> tuple[Way, ...]:
        every: tuple[Way, ...] = ("one", "loop", "sixteen", "bulk")
        return tuple(way for way in every if self.pace.of(way))


def _worker(venv: Venv, fleet: Fleet) -> list[str]:
    return [
        *(venv.program("istos-worker"), "benchmarks.apps.ours"),
        *("--procs", str(fleet.procs), "--concurrency", str(fleet.slots)),
        *("--control", f"{fleet.folder}/control.sock", "--log-level", "warning", "--scouting", "off"),
    ]


def _ours(venv: Venv, fleet: Fleet) -> Commands:
    return [[*_worker(venv, fleet), "--connect", fleet.endpoint]]


def _embedded(venv: Venv, fleet: Fleet) -> Commands:
    return [
        [*_worker(venv, fleet), "--embedded", "--listen", fleet.endpoint, "--data", f"{fleet.folder}/data"]
    ]


def _istos(venv: Venv, fleet: Fleet) -> Commands:
    return [[venv.program("python"), "-m", "benchmarks.apps.peer_istos", "worker"]] * fleet.procs


def _dramatiq(venv: Venv, fleet: Fleet) -> Commands:
    sizes = ("-p", str(fleet.procs), "-t", str(fleet.slots))
    return [[venv.program("dramatiq"), "benchmarks.apps.peer_dramatiq", *sizes]]


def _huey(venv: Venv, fleet: Fleet) -> Commands:
    threads = ("-k", "thread", "-w", str(fleet.slots))
    return [[venv.program("huey_consumer"), "benchmarks.apps.peer_huey.queue", *threads]] * fleet.procs


def _saq(venv: Venv, fleet: Fleet) -> Commands:
    return [[venv.program("saq"), "benchmarks.apps.peer_saq.settings", "--workers", str(fleet.procs)]]


def _celery(venv: Venv, fleet: Fleet) -> Commands:
    children = fleet.slots if fleet.one_main else fleet.procs
    app = ("-A", "benchmarks.apps.peer_celery", "worker", "-l", "WARNING")
    return [[venv.program("celery"), *app, "-c", str(children)]]


def _celery_threads(venv: Venv, fleet: Fleet) -> Commands:
    app = ("-A", "benchmarks.apps.peer_celery", "worker", "-l", "WARNING")
    threads = ("-P", "threads", "-c", str(fleet.slots))
    return [[venv.program("celery"), *app, *threads, "-n", f"w{n}@%h"] for n in range(fleet.procs)]


def _taskiq(venv: Venv, fleet: Fleet) -> Commands:
    sizes = ("--workers", str(fleet.procs), "--max-async-tasks", str(fleet.slots))
    app = ("worker", "benchmarks.apps.peer_taskiq:broker")
    return [[venv.program("taskiq"), *app, *sizes, "--log-level", "WARNING"]]


def _arq(venv: Venv, fleet: Fleet) -> Commands:
    return [[venv.program("arq"), "benchmarks.apps.peer_arq.WorkerSettings"]] * fleet.procs


def _rq(venv: Venv, fleet: Fleet) -> Commands:
    return [[venv.program("rq"), "worker", "default", "-u", fleet.redis, "--path", "."]] * fleet.procs


def _rq_simple(venv: Venv, fleet: Fleet) -> Commands:
    return [[*command, "-w", "rq.worker.SimpleWorker"] for command in _rq(venv, fleet)]


def _streaq(venv: Venv, fleet: Fleet) -> Commands:
    app = ("run", "benchmarks.apps.peer_streaq:worker")
    return [[venv.program("streaq"), *app, "--workers", str(fleet.procs)]]


def _procrastinate(venv: Venv, fleet: Fleet) -> Commands:
    app = ("--app", "benchmarks.apps.peer_procrastinate.app", "worker")
    return [[venv.program("procrastinate"), *app, "-c", str(fleet.slots)]] * fleet.procs


def _pgqueuer(venv: Venv, fleet: Fleet) -> Commands:
    app = ("-m", "benchmarks.apps.peer_pgqueuer", "--pg-dsn", fleet.postgres, "run")
    sizes = ("--batch-size", str(max(1, fleet.slots // 2)), "--max-concurrent-tasks", str(fleet.slots))
    return [[venv.program("python"), *app, "benchmarks.apps.peer_pgqueuer:worker", *sizes]] * fleet.procs


def _system_of_ours(name: str, title: str, broker: Broker, pace: Pace) -> System:
    return System(
        name=name,
        title=title,
        venv=OURS,
        module="benchmarks.apps.ours",
        broker=broker,
        commands=_embedded if broker == "embedded" else _ours,
        pace=pace,
        packages=("istos-worker", "eclipse-zenoh"),
        program="istos-worker",
        quick=True,
    )


def _public_istos(name: str, title: str, broker: Broker, pace: Pace, *, quick: bool) -> System:
    return System(
        name=name,
        title=title,
        venv=ISTOS,
        module="benchmarks.apps.peer_istos",
        broker=broker,
        commands=_istos,
        pace=pace,
        packages=("istos", "eclipse-zenoh", "sqlalchemy"),
        program="istos",
        quick=quick,
    )


def _peer(
    name: str,
    commands: Callable[[Venv, Fleet], Commands],
    pace: Pace,
    *,
    title: str = "",
    app: str = "",
    broker: Broker = "redis",
    packages: tuple[str, ...] = (),
    venv: Venv = PEERS,
    program: str = "",
    jobs_at_once: int | None = None,
    quick: bool = False,
) -> System:
    return System(
        name=name,
        title=title or name,
        venv=venv,
        module=f"benchmarks.apps.peer_{app or name}",
        broker=broker,
        commands=commands,
        pace=pace,
        packages=packages or (app or name,),
        program=program or name,
        jobs_at_once=jobs_at_once,
        quick=quick,
    )


ALL: tuple[System, ...] = (
    _system_of_ours(
        "ours",
        "istos-worker, memory",
        "memory",
        Pace(drain=60000, one=7000, loop=5000, sixteen=40000, bulk=150000),
    ),
    _system_of_ours(
        "ours-mesh",
        "istos-worker over Zenoh",
        "mesh",
        Pace(drain=45000, one=2500, loop=2000, sixteen=20000, bulk=150000),
    ),
    _system_of_ours(
        "ours-sqlite",
        "istos-worker, SQLite",
        "sqlite",
        Pace(drain=40000, one=1800, loop=1800, sixteen=18000, bulk=90000),
    ),
    _system_of_ours("ours-embedded", "istos-worker --embedded", "embedded", Pace(drain=40000, one=1800)),
    _public_istos(
        "istos", "istos 0.3.4, memory", "istos", Pace(drain=780, one=1000, sixteen=2000), quick=True
    ),
    _public_istos(
        "istos-sqlite",
        "istos 0.3.4, SQLite",
        "istos-sqlite",
        Pace(drain=50, one=55, sixteen=75),
        quick=False,
    ),
    _peer("dramatiq", _dramatiq, Pace(drain=3000, one=2400), quick=True),
    _peer("huey", _huey, Pace(drain=3000, one=5900), program="huey_consumer", quick=True),
    _peer("saq", _saq, Pace(drain=1000, one=1600, sixteen=3100), title="SAQ", quick=True),
    _peer(
        "taskiq",
        _taskiq,
        Pace(drain=3000, one=1300, sixteen=1700),
        title="taskiq, Redis stream",
        packages=("taskiq", "taskiq-redis"),
        quick=True,
    ),
    _peer(
        "pgqueuer",
        _pgqueuer,
        Pace(drain=1500, one=800, sixteen=1300, bulk=16000),
        broker="postgres",
        packages=("pgqueuer", "asyncpg"),
        program="pgq",
        quick=True,
    ),
    _peer("celery", _celery, Pace(drain=480, one=780), title="celery prefork"),
    _peer(
        "celery-threads",
        _celery_threads,
        Pace(drain=930, one=1000),
        title="celery threads",
        app="celery",
        program="celery",
    ),
    _peer("streaq", _streaq, Pace(drain=750, one=1400, sixteen=2100, bulk=3500)),
    _peer("arq", _arq, Pace(drain=280, one=1800, sixteen=2400), venv=ARQ),
    _peer("rq", _rq_simple, Pace(drain=330, one=1400, bulk=4200), title="rq SimpleWorker", jobs_at_once=1),
    _peer(
        "rq-fork",
        _rq,
        Pace(drain=66, one=1700, bulk=3900),
        title="rq, a fork per job",
        app="rq",
        program="rq",
        jobs_at_once=1,
    ),
    _peer(
        "procrastinate",
        _procrastinate,
        Pace(drain=340, one=280, sixteen=600, bulk=3800),
        broker="postgres",
        packages=("procrastinate", "psycopg"),
    ),
)
BY_NAME = {system.name: system for system in ALL}
