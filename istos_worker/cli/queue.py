"""The console script `istos-queue`: an owner node, and what producers and operators ask of one.

Exit codes (CONTRACT.md section 2): 1 failure, 2 bad usage, 4 the application could not be imported, 6 no owner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from istos_worker import __version__
from istos_worker.cli.options import QueueGroup, failure_line
from istos_worker.cli.queue_dead import dead
from istos_worker.cli.queue_jobs import cancel, enqueue, result, why
from istos_worker.cli.queue_look import pause, resume, stats, workers
from istos_worker.cli.queue_serve import serve
from istos_worker.cli.queue_top import top
from istos_worker.cli.queue_web import web
from istos_worker.errors import IstosError, OwnerUnreachable
from istos_worker.observability.output import output_failed
from supervisor.exits import ExitCode

PROGRAM = "istos-queue"
OWNER_UNREACHABLE = 6


@click.group(cls=QueueGroup, epilog="Every option is also read from ISTOS_QUEUE_<OPTION>.")
@click.version_option(__version__, prog_name=PROGRAM)
def queue() -> None:
    """Serve queues, fill them, look into them."""


for command in (serve, enqueue, result, stats, workers, dead, cancel, pause, resume, why, top, web):
    queue.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    words = list(sys.argv[1:] if arguments is None else arguments)
    _hide_secrets(words)
    sys.exit(run(words))


def run(words: Sequence[str]) -> int:
    """The exit code."""
    try:
        code = queue.main(list(words), prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as wrong:
        click.echo(failure_line(PROGRAM, wrong), err=True)
        return wrong.exit_code
    except click.Abort:
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return ExitCode.UNEXPECTED
    except OwnerUnreachable as unreachable:
        click.echo(f"{PROGRAM}: {unreachable}", err=True)
        return OWNER_UNREACHABLE
    except IstosError as failed:
        click.echo(f"{PROGRAM}: {failed.code}: {failed}", err=True)
        return ExitCode.UNEXPECTED
    except OSError as failed:
        return output_failed(PROGRAM, failed)
    return code if isinstance(code, int) else 0


_SECRET_OPTIONS = ("--token", "--authorize-token", "--web-token")


def _hide_secrets(words: Sequence[str]) -> None:
    """A command line is shown to everybody by `ps`; a token in it is not."""
    if not any(word.startswith(_SECRET_OPTIONS) for word in words):
        return
    from setproctitle import setproctitle

    shown: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if shown and shown[-1] in _SECRET_OPTIONS:
            shown.append("***")
        elif name in _SECRET_OPTIONS and equals:
            shown.append(f"{name}=***")
        else:
            shown.append(word)
    setproctitle(" ".join((PROGRAM, *shown)))


if __name__ == "__main__":
    main()
