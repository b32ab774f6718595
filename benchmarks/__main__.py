"""`python -m benchmarks`: run, or install the peers, draw a stored run again, compare two of them."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import chart, phases, plan, results, table, venvs
from benchmarks.compare import disagreements
from benchmarks.run import measure, missing
from benchmarks.services import postgres_bin, redis_server
from benchmarks.systems import ALL, BY_NAME, System

T = TypeVar("T")
_RESULTS = Path(__file__).parent / "results"


def main(words: Sequence[str]) -> int:
    # A stop unwinds the stack, so that no server or fleet of ours outlives it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    commands = {"run": run, "install": install, "list": show, "render": render, "compare": compare}
    if words and words[0] in commands:
        return commands[words[0]](words[1:])
    return run(words)


def run(words: Sequence[str]) -> int:
    args = _run_parser().parse_args(words)
    chosen = _systems(args.systems, quick=args.quick)
    out: Path = args.out or _RESULTS / time.strftime("%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    made = measure(
        chosen,
        _phases(args.phases),
        _plan(args),
        sync=args.redis_sync,
        save=lambda so_far: _write(so_far, out),
    )
    _write(made, out)
    print((out / "table.md").read_text())
    failures = results.violations(made)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures or not made.systems else 0


def _write(made: results.Run, out: Path) -> None:
    made.save(out / "results.json")
    (out / "table.md").write_text(table.page(made))
    (out / "chart.svg").write_text(chart.svg(made))


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this project beside its peers. Also: install, list, render, compare.",
    )
    parser.add_argument("--quick", action="store_true", help="one short repeat, the best peers only")
    parser.add_argument(
        "--full", action="store_true", help="a backlog of 1,000,000 and 120 s of patience too"
    )
    parser.add_argument("--systems", help=f"of: {', '.join(BY_NAME)}")
    parser.add_argument("--phases", help=f"of: {', '.join(phases.BY_NAME)}")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--seconds", type=float, help="length of one throughput measurement, about")
    parser.add_argument("--scale", type=float, help="multiply the numbers of jobs, to try the harness out")
    parser.add_argument("--redis-sync", choices=("none", "everysec", "always"), default="none")
    parser.add_argument("--out", type=Path, help="folder for results.json, table.md, chart.svg")
    return parser


def _plan(args: argparse.Namespace) -> plan.Plan:
    chosen = plan.quick() if args.quick else plan.Plan()
    if args.full:
        chosen = dataclasses.replace(
            chosen, backlogs=(1_000, 100_000, 1_000_000), crash_cap_s=120.0, cap_s=240.0
        )
    given = {name: getattr(args, name) for name in ("repeat", "seconds", "scale")}
    return dataclasses.replace(chosen, **{name: value for name, value in given.items() if value is not None})


def _systems(names: str | None, *, quick: bool) -> list[System]:
    if names:
        return [_named(name, BY_NAME) for name in names.split(",")]
    return [system for system in ALL if system.quick or not quick]


def _phases(names: str | None) -> list[phases.Phase]:
    if names:
        return [_named(name, phases.BY_NAME) for name in names.split(",")]
    return list(phases.ALL)


def _named(name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise SystemExit(f"{name!r} is none of: {', '.join(known)}")
    return known[name]


def install(words: Sequence[str]) -> int:
    """The environments of the named systems, or of all. Servers are the machine's own matter."""
    wanted = [_named(name, BY_NAME) for name in words] or list(ALL)
    for venv in dict.fromkeys(system.venv for system in wanted):
        print(f"{venv.name}: {venv.folder}", flush=True)
        try:
            venv.install()
        except subprocess.CalledProcessError as failed:
            print(f"{venv.name}: not installed: {failed}", file=sys.stderr)
    if any(system.broker == "redis" for system in wanted) and redis_server() is None:
        print("redis-server is missing: apt-get install redis-server", file=sys.stderr)
    if any(system.broker == "postgres" for system in wanted) and postgres_bin() is None:
        print("PostgreSQL is missing: apt-get install postgresql", file=sys.stderr)
    lacking = [f"{system.name}: {reason}" for system in wanted if (reason := missing(system))]
    for line in lacking:
        print(line, file=sys.stderr)
    return 1 if lacking else 0


def show(words: Sequence[str]) -> int:
    for system in ALL:
        reason = missing(system)
        print(f"{system.name:15} {system.title:35} {reason or 'installed'}")
    print(f"\nenvironments: {', '.join(f'{venv.name} {venv.folder}' for venv in venvs.ALL)}")
    return 0


def render(words: Sequence[str]) -> int:
    """Table and chart again, beside the given results.json."""
    for word in words:
        _write(results.load(Path(word)), Path(word).parent)
    return 0


def compare(words: Sequence[str]) -> int:
    """Do two runs agree within the spread that each states?"""
    first, second = (results.load(Path(word)) for word in words)
    lines = disagreements(first, second)
    print("\n".join(lines) or "every figure agrees within its spread")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
