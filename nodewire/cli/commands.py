"""The wiring of rooms into commands. Every command takes `--json`; none imports torch to show help."""

from __future__ import annotations

import errno
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from nodewire import __version__
from nodewire.cli.output import PlainFormatter, fail
from nodewire.core import extras, heap
from nodewire.errors import BadConfig, NodeFailed, NodewireError, first_of

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})
_ROOMS = {
    # Customers
    "generate": "buy.ask",
    "embed": "buy.ask",
    "chat": "buy.chat",
    "run": "buy.run",
    "gateway": "daemon.gateway",
    "train": "train.train",
    "trainers": "train.train",
    "family": "model.family",
    "vocabulary": "model.vocabulary",
    "audit": "audit.audit",
    "models": "market.models",
    "wallet": "market.wallet",
    "swarm": "swarm.swarm",
    # Operators
    "provider": "daemon.daemons",
    "up": "daemon.daemons",
    "splice": "daemon.splice",
    "net": "doctor.net",
    "profile": "model.profile",
    "doctor": "doctor.doctor",
    "earnings": "market.earnings",
    "bond": "market.bond",
    "keys": "market.keys",
    # Developers and committees
    "quantize": "model.quantize",
    "register": "model.register",
    "graph": "picture.graph",
    "place": "market.place",
    "oracle": "daemon.daemons",
    "relay": "daemon.relay",
    "registrar": "daemon.registrar",
    "committee": "daemon.committee",
    "policy": "audit.policy",
}
"""The module that adds a command, by the command's name. Panels of the help stand where their first command does."""


class _Commands(Mapping[str, Any]):
    """Every command. A module is imported when one of its commands is asked for: the others' take half a second."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            room = typer.Typer()
            import_module(f"nodewire.cli.{_ROOMS[name]}").add_to(room)
            self._made |= typer.main.get_group(room).commands
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_ROOMS)

    def __len__(self) -> int:
        return len(_ROOMS)


class _ByName(TyperGroup):
    """A group that makes the command that is asked for, and no other."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()


app = typer.Typer(
    name="nodewire",
    cls=_ByName,
    help="A Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


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


def run_command(command: Callable[[], None] = app) -> None:
    """Run one command of `nodewire`, or another program's.

    Typed errors become one line (or one JSON object) and exit code 1, never a traceback.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())
    heap.freeze_at_exit()
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
