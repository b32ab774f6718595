from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def errors_of(name: str, folder: Path) -> set[int]:
    """The lines of a file that mypy complains about. It is checked as a copy, so that a file full of errors need
    not be a module of the project."""
    copy = folder / name.removesuffix(".txt")
    copy.write_text((HERE / name).read_text())
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--no-error-summary",
            "--follow-imports=silent",
            f"--cache-dir={ROOT / '.mypy_cache'}",
            str(copy),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return {int(line) for line in re.findall(rf"{re.escape(copy.name)}:(\d+): error", ran.stdout)}


def marked(name: str) -> set[int]:
    lines = (HERE / name).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def test_mypy_accepts_right_calls_and_knows_the_types_of_results(tmp_path: Path) -> None:
    assert errors_of("tasks_that_pass.py", tmp_path) == set()


def test_mypy_refuses_wrong_arguments_and_wrong_result_types(tmp_path: Path) -> None:
    assert errors_of("tasks_that_fail.py.txt", tmp_path) == marked("tasks_that_fail.py.txt")
