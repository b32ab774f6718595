"""Where options come from, and what nonsense leads to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from istos_worker.cli import worker_run
from istos_worker.cli.worker_command import run
from istos_worker.cli.worker_here import cgroup_cpus, default_drain_s, live_controls, runtime_dir
from istos_worker.cli.worker_options import Options
from istos_worker.cli.worker_run import plan_of
from istos_worker.cli.worker_values import concurrency_of
from istos_worker.fleet.plan import Concurrency, Plan


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The Options that a command line leads to, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    seen: list[Options] = []

    def start(options: Options, _: object) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(worker_run, "start", start)

    def parse(*words: str, env: dict[str, str] | None = None) -> Options:
        outcome = CliRunner().invoke(run, list(words), env=env)
        assert outcome.exit_code == 0, outcome.output
        return seen.pop()

    return parse


def test_the_command_line_beats_the_environment_and_that_the_table(options_of: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.istos-worker]\ntarget = "shop"\nprocs = 2\nmax-jobs = 10\ndrain-timeout = "5s"\nqueue = ["a", "b"]\n'
    )
    env = {"ISTOS_WORKER_MAX_JOBS": "20", "ISTOS_WORKER_DRAIN_TIMEOUT": "6s"}

    options = options_of("--drain-timeout", "7s", env=env)

    assert options.targets == ("shop",)
    assert (options.procs, options.max_jobs, options.drain_timeout_s) == (2, 20, 7.0)
    assert options.queue == ("a", "b")


def test_a_misspelt_option_in_the_table_is_refused(options_of: Any, tmp_path: Path) -> None:
    table = tmp_path / "pyproject.toml"
    table.write_text('[tool.istos-worker]\ntarget = "shop"\nstorage = "memory:"\n')
    assert options_of().targets == ("shop",)  # the other command's option

    table.write_text('[tool.istos-worker]\ntarget = "shop"\ndrain-timout = "5s"\n')

    outcome = CliRunner().invoke(run)
    assert outcome.exit_code == 2
    assert "no option 'drain-timout'; did you mean drain-timeout?" in outcome.output


def test_a_number_for_one_queue_beats_the_decorator_which_beats_the_general_number() -> None:
    concurrency = concurrency_of([(None, 3), ("jobs/a", 7), (None, 4)])
    assert [concurrency.of("jobs/a", 2), concurrency.of("jobs/b", 2), concurrency.of("jobs/b", None)] == [
        7,
        2,
        4,
    ]
    assert Concurrency().of("jobs/b", None) == 10


@pytest.mark.parametrize(
    "words",
    [
        ["--procs", "0"],
        ["--procs", "-1"],
        ["--procs", "many"],
        ["--concurrency", "0"],
        ["--concurrency", "jobs/a=x"],
        ["--concurrency", "=3"],
        ["--max-jobs", "0"],
        ["--max-jobs-jitter", "3"],
        ["--max-memory", "lots"],
        ["--max-lifetime", "-3s"],
        ["--drain-timeout", "soon"],
        ["--boot-timeout", "0"],
        ["--metrics", "nowhere"],
        ["--log-format", "xml"],
        ["--queue", "a b"],
        ["--connect", "nonsense"],
        ["--zenoh-config", "missing.json"],
        ["--unknown"],
        [],
    ],
)
def test_nonsense_is_refused_with_one_line_and_code_2(words: list[str], tmp_path: Path) -> None:
    target = ["app"] if words else []
    done = subprocess.run(
        [sys.executable, "-m", "istos_worker.cli.worker", *target, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("istos-worker: ")


def test_a_plan_arrives_as_it_was_sent(options_of: Any) -> None:
    options = options_of(
        "app", "--token", "s3cret", "--concurrency", "jobs/a=3", "--connect", "tcp/10.0.0.1:7447"
    )
    plan = plan_of(options, {})
    assert Plan.load(plan.dump()) == plan
    assert "s3cret" not in repr(plan)


def test_a_target_in_the_table_that_is_none_is_refused(options_of: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.istos-worker]\ntargets = 3\n")

    outcome = CliRunner().invoke(run)

    assert outcome.exit_code == 2
    assert "target must be text or a list, got 3" in outcome.output


def test_words_that_are_no_text_are_refused() -> None:
    command: list[str | bytes] = [sys.executable, "-m", "istos_worker.cli.worker", b"\xff\xfe"]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr == "istos-worker: TARGET and options must be UTF-8 text (see istos-worker --help)\n"


def test_only_an_embedded_or_solo_fleet_owns_queues(options_of: Any) -> None:
    def owns(*words: str) -> bool:
        return plan_of(options_of("app", *words), {}).data is not None

    assert not owns()
    assert owns("--embedded")
    assert owns("--solo")
    assert not owns("--solo", "--connect", "tcp/127.0.0.1:7447")
    assert owns("--solo", "--embedded", "--connect", "tcp/127.0.0.1:7447")


def test_under_honcho_the_drain_is_shorter_than_its_patience() -> None:
    assert default_drain_s({"HONCHO_PROCESS_NAME": "worker.1"}) == 4.0
    assert default_drain_s({}) == 25.0


def test_a_cgroup_quota_is_read_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cgroup_cpus(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cgroup_cpus(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cgroup_cpus(tmp_path) == 2.0


def test_a_dead_fleets_folder_is_removed_and_a_living_ones_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("istos_worker.cli.worker_here.runtime_root", lambda: tmp_path)
    (tmp_path / "123-abandoned").mkdir()
    with runtime_dir() as ours:
        assert not (tmp_path / "123-abandoned").exists()
        assert live_controls() == []  # it listens elsewhere, or not yet
        ours.control.touch()
        assert live_controls() == [ours.control]
    assert live_controls() == []


def test_completion_knows_ctl_and_its_commands() -> None:
    def completions(words: str, number: int) -> str:
        env = {
            **os.environ,
            "_ISTOS_WORKER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        command = [sys.executable, "-m", "istos_worker.cli.worker"]
        return subprocess.run(command, capture_output=True, text=True, env=env).stdout

    assert "ctl" in completions("istos-worker c", 1)
    assert "reload" in completions("istos-worker ctl re", 2)
    assert "--embedded" in completions("istos-worker app --emb", 2)
