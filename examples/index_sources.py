"""Indexes the source files of the running Python's standard library, one job a file.

    python -m examples.index_sources            # starts a fleet, shows progress, prints the report

What it shows: CPU-bound work in plain functions (no async) that uses every core, since a fleet is processes; a
chord, whose callback gets all results once the last file is parsed; and that killing workers, or the owner, with
-9 in the middle changes nothing in the report. Parsing a file twice gives the same result, and the report replaces
its file in one step, so a job that is delivered again does no harm.

The same module is the application of a fleet:

    istos-worker examples.index_sources --embedded --procs 2 --concurrency 4
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from examples.fleet import Fleet
from istos_worker import App
from istos_worker.client import Client

FILES = "index/files"
REPORTS = "index/reports"


class FileFigures(TypedDict):
    path: str
    lines: int
    functions: int
    classes: int
    parsed: bool
    seconds: float
    worker: str
    started: float
    ended: float


class Report(TypedDict):
    files: int
    unparsable: int
    lines: int
    functions: int
    classes: int
    slowest_file: str
    slowest_s: float
    jobs_per_s: float
    by_worker: dict[str, int]


app = App("index-sources")
app.queue(FILES, lease_s=30, max_attempts=3, keep_results=True)
app.queue(REPORTS, lease_s=30, max_attempts=3, keep_results=True)


@app.worker(FILES)
def index_file(path: str) -> FileFigures:
    """Parses one file. A plain function: it runs in a thread of the worker process."""
    started = time.time()
    source = Path(path).read_bytes()
    functions, classes, parsed = count_definitions(source)
    ended = time.time()
    return FileFigures(
        path=path,
        lines=source.count(b"\n"),
        functions=functions,
        classes=classes,
        parsed=parsed,
        seconds=ended - started,
        worker=os.environ.get("ISTOS_WORKER_INDEX", "0"),
        started=started,
        ended=ended,
    )


@app.worker(REPORTS)
def write_report(job: dict[str, object]) -> Report:
    """The chord's callback: `job` is {"results": [...one per file...], "input": where the report goes}."""
    results: list[FileFigures] = job["results"]  # type: ignore[assignment]
    report = summarise(results)
    replace_file(Path(str(job["input"])), json.dumps(report))
    return report


def count_definitions(source: bytes) -> tuple[int, int, bool]:
    """Functions, classes, and whether it is Python at all: the library ships broken files for its own tests."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return 0, 0, False
    nodes = list(ast.walk(tree))
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return functions, classes, True


def summarise(results: Sequence[FileFigures]) -> Report:
    slowest = max(results, key=lambda one: one["seconds"])
    elapsed_s = max(one["ended"] for one in results) - min(one["started"] for one in results)
    return Report(
        files=len(results),
        unparsable=sum(not one["parsed"] for one in results),
        lines=sum(one["lines"] for one in results),
        functions=sum(one["functions"] for one in results),
        classes=sum(one["classes"] for one in results),
        slowest_file=slowest["path"],
        slowest_s=slowest["seconds"],
        jobs_per_s=len(results) / max(elapsed_s, 1e-6),
        by_worker=dict(sorted(Counter(one["worker"] for one in results).items())),
    )


def replace_file(path: Path, text: str) -> None:
    """In one step: a reader sees the old content or the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def source_files(limit: int | None = None) -> list[str]:
    """Every Python file of the standard library, without what was installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(
        str(path)
        for path in root.rglob("*.py")
        if not {"site-packages", "dist-packages"}.intersection(path.relative_to(root).parts)
    )
    return found[:limit]


async def submit(client: Client, paths: Sequence[str], report: Path) -> list[str]:
    """Enqueues one job a file; the report is written when the last of them is done."""
    return await client.chord(FILES, paths, callback=(REPORTS, str(report)), timeout_s=60)


async def show_progress(client: Client, total: int, report: Path) -> Report:
    """Prints how far the fleet is until the report is there."""
    progress = Progress(total)
    while (found := read_report(report)) is None:
        counts = (await client.stats(FILES, timeout_s=30))["counts"]
        progress.show(counts["done"])
        if counts["dead"]:
            letters = await client.dead_letters(FILES, limit=1)
            raise SystemExit(f"\n{counts['dead']} files could not be indexed: {letters[0]['last_error']}")
        await asyncio.sleep(0.25)
    progress.show(total)
    print()
    return found


def read_report(path: Path) -> Report | None:
    if not path.exists():
        return None
    report: Report = json.loads(path.read_text())
    return report


class Progress:
    """A bar that grows in place on a terminal, and a line for every tenth anywhere else."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._on_terminal = sys.stdout.isatty()
        self._tenth = -1

    def show(self, done: int) -> None:
        filled = 40 * done // max(self._total, 1)
        bar = f"[{'#' * filled}{'.' * (40 - filled)}] {done}/{self._total} files"
        if self._on_terminal:
            print(f"\r{bar}", end="", flush=True)
        elif filled // 4 > self._tenth:
            self._tenth = filled // 4
            print(bar, flush=True)


def rendered(report: Report) -> str:
    workers = ", ".join(f"worker {name}: {jobs}" for name, jobs in report["by_worker"].items())
    return "\n".join(
        (
            f"{report['files']:>9,} files, of which {report['unparsable']} are no Python (the library's own test data)",
            f"{report['lines']:>9,} lines",
            f"{report['functions']:>9,} functions",
            f"{report['classes']:>9,} classes",
            f"slowest   {report['slowest_file']} ({report['slowest_s']:.2f} s)",
            f"speed     {report['jobs_per_s']:.0f} jobs/s ({workers})",
        )
    )


async def index(fleet: Fleet, paths: Sequence[str], report: Path) -> Report:
    async with Client(fleet.network) as client:
        await submit(client, paths, report)
        return await show_progress(client, len(paths), report)


def main() -> int:
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("--procs", type=int, default=2)
    options.add_argument("--concurrency", type=int, default=4)
    options.add_argument("--limit", type=int, help="index only so many files")
    given = options.parse_args()
    paths = source_files(given.limit)
    with tempfile.TemporaryDirectory(prefix="index-sources-") as folder:
        sizes = ("--procs", str(given.procs), "--concurrency", str(given.concurrency))
        with Fleet("examples.index_sources", Path(folder), *sizes) as fleet:
            print(f"{len(paths)} files, {given.procs} processes with {given.concurrency} loops each")
            report = asyncio.run(fleet.while_running(index(fleet, paths, Path(folder) / "report.json")))
        print(rendered(report))
    return fleet.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
