"""What the commands share that run a model here, with --local."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nodewire.errors import BadInput, NotFound
from nodewire.gguf import model as gguf

Local = Annotated[
    Path | None,
    typer.Option(
        help="Run this Hugging Face model folder, or GGUF file, here, without any market, and so without its options."
    ),
]
Threads = Annotated[int, typer.Option(help="CPU threads of a --local run.", min=1)]

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", help="The dtype of a --local run: float32 or bfloat16 (default: the model's, where that is quicker)."
    ),
]


def dtype_of(text: str) -> Literal["float32", "bfloat16"] | None:
    """The dtype that a decoder is asked to compute in; None if no option says it. Raises BadInput."""
    match text:
        case "":
            return None
        case "float32" | "bfloat16":
            return text
    raise BadInput("--dtype", f"{text[:40]!r} is neither float32 nor bfloat16")


def model_folder(folder: Path) -> Path:
    """`folder`, before any library that reads it is loaded, which takes seconds. Raises NotFound."""
    check_model(folder, "--local")
    if folder.is_dir() and not (folder / "config.json").is_file():
        layout = "is in Meta's layout, which `register` alone reads" if (folder / "params.json").is_file() else ""
        raise NotFound("--local", f"{folder} {layout or 'holds no config.json'}; name a Hugging Face model's folder")
    return folder


def encoder_folder(folder: Path) -> Path:
    """As `model_folder`, of a model that embeds text. Raises BadInput: it is a file of one that generates it."""
    if gguf.is_gguf(folder):
        raise BadInput("--local", f"{folder} is a GGUF file, whose model generates text; name an encoder's folder")
    return model_folder(folder)


def check_model(path: Path, field: str = "") -> None:
    """Raises NotFound, of that field, or of the path itself.

    The path is neither a folder nor a GGUF file, or a shard of one is missing.
    """
    if gguf.is_gguf(path):
        gguf.files_of(path)
        return
    said = ""
    if not path.is_dir():
        said = "is a file, and neither a folder nor a GGUF file" if path.exists() else "is not there"
    elif not (path / "config.json").exists() and (files := sorted(path.glob(f"*{gguf.SUFFIX}"))):
        said = f"holds no config.json, but {len(files)} GGUF files: name one, as {files[0]}"
    if said:
        raise NotFound(field or str(path), f"{path} {said}" if field else said)


def model_name(path: Path) -> str:
    """What a model is called that lies in a folder or a file."""
    return gguf.name_of(path) if gguf.is_gguf(path) else path.resolve().name
