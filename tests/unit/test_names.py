"""Names that outside programs rely on: options, commands, and modules that must not clash with supervisord's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import click
import pytest

from istos_worker.cli.ctl import ctl
from istos_worker.cli.worker_command import run

ROOT = Path(__file__).parent.parent.parent

OPTIONS = """
    --procs --concurrency --queue --connect --listen --mode --scouting --namespace --zenoh-config --token
    --token-file --embedded --data --drain-timeout --max-jobs --max-jobs-jitter --max-memory --max-lifetime
    --boot-timeout --stall-timeout --job-timeout --solo --burst --reload --metrics --control --pidfile
    --log-level --log-format --check --version
"""
CTL = "status reload quiet resume scale stacks stop"
SUPERVISORD = """
    childutils compat confecho datatypes dispatchers events http http_client loggers medusa options pidproxy
    poller process rpcinterface scripts skel socket_manager states supervisorctl supervisord templating tests ui
    web xmlrpc
"""


def option_names(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts}


def test_every_option_of_istos_worker_exists() -> None:
    assert set(OPTIONS.split()) <= option_names(run)


def test_every_ctl_command_exists() -> None:
    assert set(CTL.split()) <= set(ctl.commands)
    assert "--wait" in option_names(ctl.commands["reload"])


def test_every_command_of_istos_queue_exists() -> None:
    from istos_worker.cli.queue import main

    done = subprocess.run(
        [sys.executable, "-m", main.__module__, "--help"], capture_output=True, text=True, check=True
    )
    for name in [
        "serve",
        "enqueue",
        "result",
        "stats",
        "workers",
        "dead",
        "cancel",
        "pause",
        "resume",
        "why",
        "top",
        "web",
    ]:
        assert f"\n  {name}" in done.stdout


def test_every_option_has_an_environment_variable() -> None:
    for option in run.params:
        if isinstance(option, click.Option) and option.name not in ("version", "help"):
            names = option.envvar or f"ISTOS_WORKER_{str(option.name).upper()}"
            assert names == "ISTOS_WORKER_" + option.opts[-1].removeprefix("--").replace("-", "_").upper()


def test_the_supervisor_package_uses_no_name_of_supervisord() -> None:
    modules = {path.stem for path in (ROOT / "supervisor").rglob("*.py")}
    folders = {path.name for path in (ROOT / "supervisor").iterdir() if path.is_dir()}
    assert not set(SUPERVISORD.split()) & (modules | folders)


def test_the_supervisor_package_is_empty_but_for_its_docstring() -> None:
    source = (ROOT / "supervisor" / "__init__.py").read_text()
    compiled = compile(source, "supervisor", "exec", flags=0x400)  # ast.PyCF_ONLY_AST
    assert len(compiled.body) <= 1  # type: ignore[attr-defined]


def loaded_by(imports: str, names: tuple[str, ...]) -> list[str]:
    """Those of `names` that a process has loaded after these imports."""
    script = f"import sys, {imports}\nprint(*(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_command_imports_no_zenoh_and_no_application_code() -> None:
    imports = (
        "istos_worker.cli.worker, istos_worker.cli.worker_command, istos_worker.cli.worker_run, "
        "istos_worker.cli.worker_fleet, supervisor.main"
    )
    forbidden = ("zenoh", "uvloop", "rich", "prometheus_client", "istos_worker.app", "sqlite3")

    assert loaded_by(imports, (*forbidden, "istos_worker.worker.worker")) == []


def test_the_process_that_runs_a_fleet_never_loads_what_reads_a_command_line() -> None:
    imports = (
        "istos_worker.cli.worker, istos_worker.cli.worker_apart, istos_worker.cli.worker_fleet, "
        "istos_worker.cli.worker_hooks, supervisor.supervising"
    )

    assert loaded_by(imports, ("click", "tomllib", "istos_worker.cli.options")) == []


@pytest.mark.crash
def test_the_built_wheel_lives_beside_supervisord(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    python = new_environment(tmp_path / "venv")
    install(python, "supervisor", "setuptools<81", str(wheel), "--find-links", str(tmp_path))

    def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    ours = ran(python.parent / "istos-worker", "--version")
    theirs = ran(python.parent / "supervisord", "--version")
    both = ran(python, "-c", "import supervisor.main, supervisor.supervisord")

    assert (ours.returncode, ours.stdout) == (0, "istos-worker, version 0.1.0\n"), ours.stderr
    assert theirs.returncode == 0, theirs.stderr
    assert both.returncode == 0, both.stderr


def build_wheel(folder: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        skip_if_offline(made.stderr)
    return next(folder.glob("istos_worker-*.whl"))


def new_environment(folder: Path) -> Path:
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("no ensurepip here, so no virtual environment with pip")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def install(python: Path, *requirements: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *requirements], capture_output=True, text=True
    )
    if done.returncode:
        skip_if_offline(done.stderr)


def skip_if_offline(errors: str) -> None:
    if any(sign in errors for sign in ("ConnectionError", "connection", "No matching distribution")):
        pytest.skip(f"the package index is not reachable: {errors.splitlines()[-1]}")
    raise AssertionError(errors)
