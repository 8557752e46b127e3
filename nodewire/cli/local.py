"""What the commands share that run a model here, with --local."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodewire.errors import NotFound

Local = Annotated[
    Path | None,
    typer.Option(help="Run this Hugging Face model folder here, without any market, and so without its options."),
]
Threads = Annotated[int, typer.Option(help="CPU threads of a --local run.", min=1)]


def model_folder(folder: Path) -> Path:
    """`folder`, before any library that reads it is loaded, which takes seconds. Raises NotFound."""
    if not folder.is_dir():
        raise NotFound("--local", f"{folder} is {'a file, and no folder' if folder.exists() else 'not there'}")
    if not (folder / "config.json").is_file():
        raise NotFound("--local", f"{folder} holds no config.json; it takes the folder of a Hugging Face model")
    return folder
