"""`nodewire vocabulary`: a tokenizer for a decoder that starts from nothing, learned from the texts that train it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from nodewire.cli.model.family import toml_lines
from nodewire.cli.output import CUSTOMERS, Json, print_json
from nodewire.errors import BadInput


def vocabulary(
    texts: Annotated[Path, typer.Argument(help="A file or folder of UTF-8 texts.")],
    out: Annotated[Path, typer.Option(help="The folder that gets tokenizer.json; `nodewire train --start` reads it.")],
    size: Annotated[int, typer.Option(help="Tokens at most, the 256 bytes and the end of a text among them.")] = 4_096,
    json: Json = False,
) -> None:
    r"""Learn a byte-level BPE vocabulary; prints its lines for a decoder's \[family]."""
    from nodewire.training.engine import sample_files  # torch is imported here, not before
    from nodewire.training.engine.models import vocabulary as vocabularies

    if not out.is_dir():
        raise BadInput("--out", f"{out} is no folder")
    data = vocabularies.learned(sample_files.texts(texts), size)
    (out / "tokenizer.json").write_bytes(data)
    said = {
        "tokens": "bpe",
        "vocabulary": vocabularies.size_of(data),
        "ends": [0],
        "tokenizer": {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)},
    }
    if json:
        print_json(said)
        return
    print("\n".join(toml_lines(said)))


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(vocabulary)
