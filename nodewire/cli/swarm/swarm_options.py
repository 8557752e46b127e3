"""What the commands of a swarm's members share: the options, and a machine's own part by them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nodewire.errors import BadInput
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from nodewire.swarm.file import SwarmFile
    from nodewire.swarm.member import SwarmCustomer

_PANEL = "With --swarm"
SwarmAt = Annotated[
    Path | None,
    typer.Option(
        "--swarm", help="A swarm's file in place of a market: people who know each other, nothing paid.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Split = Annotated[
    str,
    typer.Option(help="The layers of its nodes, such as 0-7,8-15, if the file has none.", rich_help_panel=_PANEL),
]
Key = Annotated[
    Path | None,
    typer.Option(
        help="This machine's key file (default: the one that `nodewire swarm key` made).", rich_help_panel=_PANEL
    ),
]  # fmt: skip
State = Annotated[
    Path | None,
    typer.Option(help="A folder for this machine's state (default: in ~/.nodewire).", rich_help_panel=_PANEL),
]
Lookahead = Annotated[
    int | None,
    typer.Option(
        help="The distance to run ahead by guess (default: the file's; of `generate --local` 1).",
        min=1,
        max=MAX_LOOKAHEAD,
        rich_help_panel=_PANEL,
    ),
]
HOME = ".nodewire"


def key_of(role: str) -> Path:
    """The key file of this machine's "node" or "customer"."""
    return Path.home() / HOME / f"{role}.key"


def state_of(file: SwarmFile, role: str) -> Path:
    return Path.home() / HOME / file.name / role


def customer_of(path: Path, split: str, key: Path | None, state: Path | None, lookahead: int | None) -> SwarmCustomer:
    """Who asks the swarm of a file. Raises BadConfig, BadInput: as SwarmFile.read; there is no key."""
    from nodewire.swarm.file import SwarmFile
    from nodewire.swarm.member import SwarmCustomer

    file = SwarmFile.read(path, split)
    own = require_key(key or key_of("customer"), "--key")
    return SwarmCustomer(path, file, own, state or state_of(file, "customer"), lookahead or file.lookahead)


def require_key(key: Path, option: str) -> Path:
    """Raises BadInput: a key that was never made is in nobody's file."""
    if not key.is_file():
        raise BadInput(option, f"{key} does not exist: `nodewire swarm key` makes this machine's keys")
    return key


def no_market(**market: object) -> None:
    """Raises BadInput: a swarm is given what only a market has."""
    if asked := [f"--{name.replace('_', '-')}" for name, value in market.items() if value]:
        raise BadInput(asked[0], f"is of a market, a swarm has none: leave out {' and '.join(asked)}")


def only_swarm(**swarm: object) -> None:
    """Raises BadInput: what only a swarm has is given elsewhere."""
    if asked := [f"--{name}" for name, value in swarm.items() if value]:
        raise BadInput(asked[0], "is for --swarm")
