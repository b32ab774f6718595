"""The console script `istos-worker`. Its process becomes the supervisor: it imports no application code and no
zenoh, so that it stays small and nothing of the user's can bring it down.

Everything is imported inside main(), after the signals are held: a TERM that comes meanwhile waits. What is needed
before that is what the interpreter has loaded by itself, and `signal`.
"""

from __future__ import annotations

import os
import sys

from supervisor.early import hold_signals, release_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    import click

    from istos_worker.cli.worker_run import HandOver
    from supervisor.embryo import Embryo

PROGRAM = "istos-worker"
_COMPLETE = "_ISTOS_WORKER_COMPLETE"
_NO_FLEET = frozenset(("--help", "--version", "--check", "--solo"))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Exits with a code of CONTRACT.md section 2."""
    hold_signals()
    _occupy_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    embryo = _embryo(words)
    try:
        sys.exit(_run(words) if embryo is None else _run_fleet(words, embryo))
    except OSError as failed:
        from istos_worker.observability.output import output_failed

        sys.exit(output_failed(PROGRAM, failed))
    finally:
        if embryo is not None:
            embryo.abandon()


def _occupy_standard_streams() -> None:
    """Those that were closed from the start: else a pipe of ours takes the number, and log lines are written to it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _run_fleet(words: list[str], embryo: Embryo) -> int:
    from istos_worker.cli.worker_apart import read_apart

    fleet = read_apart(lambda hand_over: _run(words, hand_over))
    if isinstance(fleet, int):
        return fleet
    if fleet is None:  # the environment or pyproject.toml says that it is to be something else
        embryo.abandon()
        return _run(words)
    from istos_worker.cli.worker_fleet import run_fleet

    return run_fleet(fleet, embryo)


def _embryo(words: Sequence[str]) -> Embryo | None:
    """What will be the zygote, importing while this process reads its options: a third of the time to the first
    job. A command that turns out to be for something else ends it."""
    if _COMPLETE in os.environ or words[:1] == ["ctl"] or not _NO_FLEET.isdisjoint(words):
        return None
    from supervisor.embryo import Embryo

    try:
        return Embryo((sys.executable, "-m", "istos_worker.fleet.zygote"))
    except OSError:
        return None  # the supervisor will try again, and say why it cannot


def _command_for(words: Sequence[str]) -> click.Command:
    """`ctl` is reserved as the first word; a module of that name is given as `ctl:app`."""
    first = os.environ.get("COMP_WORDS", "").split()[1:2] if _COMPLETE in os.environ else list(words[:1])
    if first == ["ctl"]:
        import click

        from istos_worker.cli.ctl import ctl

        release_signals()
        return click.Group(PROGRAM, commands={"ctl": ctl})
    from istos_worker.cli.worker_command import run

    return run


def _run(words: list[str], hand_over: HandOver | None = None) -> int:
    import click

    try:
        code: int | None = _command_for(words).main(
            words, prog_name=PROGRAM, standalone_mode=False, complete_var=_COMPLETE, obj=hand_over
        )
    except click.ClickException as wrong:
        from istos_worker.cli.options import failure_line

        click.echo(failure_line(PROGRAM, wrong), err=True)
        return wrong.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 1
    return code or 0


if __name__ == "__main__":
    main()
