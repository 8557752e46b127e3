"""The wiring of rooms into commands. Every command takes `--json`; none imports torch to show help."""

from __future__ import annotations

import errno
import logging
import sqlite3
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nodewire import __version__
from nodewire.cli.audit import audit, policy
from nodewire.cli.buy import ask, chat, run
from nodewire.cli.daemon import committee as committees
from nodewire.cli.daemon import daemons, gateway, registrar, relay, splice
from nodewire.cli.doctor import doctor, net
from nodewire.cli.market import bond, earnings, keys, models, place, wallet
from nodewire.cli.market.tabs import tabs
from nodewire.cli.model import family, profile, quantize, register, vocabulary
from nodewire.cli.output import CUSTOMERS, DEVELOPERS, OPERATORS, PlainFormatter, fail
from nodewire.cli.picture import graph
from nodewire.cli.swarm import swarm as swarms
from nodewire.cli.train import train
from nodewire.core import extras
from nodewire.errors import BadConfig, NodeFailed, NodewireError, first_of

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


class _ByPanel(TyperGroup):
    """Commands in the order of their panels: typer shows a panel where its first command stands, and groups first."""

    def list_commands(self, ctx: Any) -> list[str]:
        panels = (CUSTOMERS, OPERATORS, DEVELOPERS)

        def place(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return panels.index(panel) if panel in panels else len(panels)

        return sorted(super().list_commands(ctx), key=place)


app = typer.Typer(
    name="nodewire",
    cls=_ByPanel,
    help="A Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for room in (
    ask,
    chat,
    run,
    gateway,
    train,
    family,
    vocabulary,
    quantize,
    register,
    graph,
    place,
    daemons,
    relay,
    registrar,
    splice,
    earnings,
    net,
    audit,
    profile,
    doctor,
):
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


app.add_typer(models.app, name="models", rich_help_panel=CUSTOMERS)
wallet.app.command()(tabs)
app.add_typer(wallet.app, name="wallet", rich_help_panel=CUSTOMERS)
app.add_typer(swarms.app, name="swarm", rich_help_panel=CUSTOMERS)
app.add_typer(bond.app, name="bond", rich_help_panel=OPERATORS)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATORS)
app.add_typer(committees.app, name="committee", rich_help_panel=DEVELOPERS)
app.add_typer(policy.app, name="policy", rich_help_panel=DEVELOPERS)


def run_command(command: Callable[[], None] = app) -> None:
    """Run one command of `nodewire`, or another program's.

    Typed errors become one line (or one JSON object) and exit code 1, never a traceback.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
    try:
        command()
    except Exception as error:
        first = first_of(error)
        if isinstance(first, ModuleNotFoundError):
            first = extras.not_installed((first.name or "").partition(".")[0]) or first
        if isinstance(first, OSError) and first.errno in _NO_ROOM:
            first = NodeFailed(str(first.filename or "this machine"), first.strerror or str(first))
        if isinstance(first, OSError):  # a file or a port of this machine
            first = BadConfig(str(first.filename or "this machine"), first.strerror or str(first))
        if isinstance(first, sqlite3.Error):
            first = NodeFailed("a database of this machine", str(first))
        if not isinstance(first, NodewireError):
            raise
        fail(first, as_json="--json" in sys.argv)
