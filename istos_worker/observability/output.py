"""What a command says when what it prints cannot be written: a full disk must not end in a traceback of ours."""

from __future__ import annotations

import os
import sys


def output_failed(program: str, failed: OSError) -> int:
    """One line, and the exit code. What is left to print goes nowhere: else the interpreter would try once more when
    it exits, and end with a traceback and a code of its own."""
    named = f": {failed.filename}" if failed.filename is not None else ""
    print(f"{program}: {failed.strerror or failed}{named}", file=sys.stderr)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return 1
