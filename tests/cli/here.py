"""A command of `nodewire` in this process, whose libraries are loaded: one of its own takes seconds for that.

That a command starts as a process, and what it imports, others prove: test_cli_interrupt.py and test_imports.py.
"""

from __future__ import annotations

import io
import signal
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from nodewire import cli
from nodewire.cli import output


def run_here(*command: str, cwd: Path, stdin: str = "") -> CompletedProcess[str]:
    """`nodewire COMMAND` in the folder `cwd`: its exit code, and what it printed. What it has changed is put back."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    heard, code = signal.getsignal(signal.SIGINT), None
    argv, read = patch.object(sys, "argv", ["nodewire", *command]), patch.object(sys, "stdin", io.StringIO(stdin))
    try:
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err), argv, read:
            cli.main()
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGINT, heard)
        output.end.is_told = False
    assert isinstance(code, int), code
    said = (one.buffer.getvalue().decode() for one in (out, err))
    return CompletedProcess(["nodewire", *command], code, *said)
