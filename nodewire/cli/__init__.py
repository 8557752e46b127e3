"""`nodewire ...`: the wiring of rooms into commands. Every command takes `--json`; none imports torch to show help."""

from __future__ import annotations

import logging
import sys

import typer

from nodewire.cli import ask, audit, daemons, doctor, keys, models, wallet
from nodewire.cli import committee as committees
from nodewire.cli.output import PlainFormatter, fail
from nodewire.errors import NodewireError

app = typer.Typer(
    name="nodewire",
    help="A Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for room in (ask, models, daemons, audit, doctor):
    room.add_to(app)
app.add_typer(committees.app, name="committee")
app.add_typer(keys.app, name="keys")
app.add_typer(wallet.app, name="wallet")


def main() -> None:
    """The console script: typed errors become one line (or one JSON object) and exit code 1, never a traceback."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
    try:
        app()
    except NodewireError as error:
        fail(error, as_json="--json" in sys.argv)
    except KeyboardInterrupt:
        sys.exit(130)
