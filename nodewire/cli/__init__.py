"""`nodewire ...`: the wiring of rooms into commands. Every command takes `--json`; none imports torch to show help."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from nodewire import __version__
from nodewire.cli import ask, audit, bond, daemons, doctor, keys, models, wallet
from nodewire.cli import committee as committees
from nodewire.cli.output import PlainFormatter, fail
from nodewire.errors import BadConfig, NodewireError, first_of

app = typer.Typer(
    name="nodewire",
    help="A Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for room in (ask, models, daemons, audit, doctor):
    room.add_to(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _nodewire(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    return


app.add_typer(bond.app, name="bond")
app.add_typer(committees.app, name="committee")
app.add_typer(keys.app, name="keys")
app.add_typer(wallet.app, name="wallet")


def main() -> None:
    """The console script: typed errors become one line (or one JSON object) and exit code 1, never a traceback."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        first = first_of(error)
        if isinstance(first, OSError):  # a file or a port of this machine
            first = BadConfig(str(first.filename or "this machine"), first.strerror or str(first))
        if not isinstance(first, NodewireError):
            raise
        fail(first, as_json="--json" in sys.argv)
