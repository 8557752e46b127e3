"""`nodewire ...`: the console script. Ctrl-C is heard before anything but `signal` is imported."""

from __future__ import annotations

import os
import signal
import sys

from nodewire import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from nodewire.cli.commands import app as app

STOPPED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run one command. Ctrl-C at any moment is one line and the exit code 130, never a traceback."""
    hears = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a shell's background jobs do not
    if hears:
        signal.signal(signal.SIGINT, _stop_at_once)
    from nodewire.cli import commands, output

    try:
        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which event loops replace by their own
        commands.run_command()
    except (KeyboardInterrupt, SystemExit) as error:
        if hears:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        code = STOPPED if isinstance(error, KeyboardInterrupt) else error.code
        if code == STOPPED and not output.end.is_told:
            output.notes.print("stopped")
        if hears:  # all is said: another Ctrl-C only ends what is left of the process
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(code if isinstance(code, int) else 1))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sys.exit(code)


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    """End the process where nothing has begun yet."""
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


def __getattr__(name: str) -> Any:
    if name == "app":
        from nodewire.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
