"""`nodewire family`: what a recipe says to start from a model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nodewire.cli.output import CUSTOMERS, Json, print_json


def family(
    folder: Annotated[
        Path,
        typer.Argument(help="A Hugging Face model folder (config.json, safetensors, tokenizer.json), or a GGUF file."),
    ],
    json: Json = False,
) -> None:
    r"""Print a recipe's \[family] table to start from a model; `nodewire train --start FOLDER` reads its files."""
    from nodewire.training.engine.models.directory import family_of  # torch is imported here, not before

    document = family_of(folder).document()
    if json:
        print_json({"family": document})
        return
    print("[family]")
    print("\n".join(toml_lines(document)))


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(family)


def toml_lines(document: dict[str, Any]) -> list[str]:
    """A document's fields, a line each; what is null has no line."""
    return [f"{name} = {_toml(value)}" for name, value in document.items() if value is not None]


def _toml(value: Any) -> str:
    """A value of a recipe's document in a line; its strings have nothing that would have to be escaped."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case dict():
            return "{ " + ", ".join(toml_lines(value)) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"'
