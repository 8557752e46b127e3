"""`nodewire keys`: make and show Nostr keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nodewire.cli.output import OPERATORS, Json, console, print_json
from nodewire.errors import BadConfig
from nodewire.nostr.keys import Keys

app = typer.Typer(help="Make and show Nostr keys.", no_args_is_help=True)


def add_to(commands: typer.Typer) -> None:
    commands.add_typer(app, name="keys", rich_help_panel=OPERATORS)


@app.command()
def new(file: Annotated[Path, typer.Argument(help="The file for the nsec (mode 0600).")], json: Json = False) -> None:
    """Make a new key in FILE; refuses if the file exists."""
    if file.exists():
        raise BadConfig(str(file), "exists; a key is never overwritten")
    _show(Keys.from_file(file), file, json)


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A key file.")], json: Json = False) -> None:
    """Print the public key of FILE."""
    if not file.exists():
        raise BadConfig(str(file), "does not exist; `nodewire keys new` makes one")
    _show(Keys.from_file(file), file, json)


def _show(keys: Keys, file: Path, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "npub": keys.npub, "public": keys.public})
    else:
        console.print(f"{escape(str(file))}: [bold]{keys.npub}[/]\n[dim]hex {keys.public}[/]", soft_wrap=True)
