"""Files on the customer's disk that a training reads and leaves behind, beside its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def readable(start: Path) -> list[Path]:
    """What a worker has to read of `start`, a folder or a safetensors file.

    Links in it may lead elsewhere, as they do in a cache of downloads.
    """
    folder = start if start.is_dir() else start.parent
    return [folder, *(path.resolve() for path in (folder.iterdir() if folder.is_dir() else ()) if path.is_symlink())]


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """A model's files, into a folder that is made if it is missing; one that is broken off leaves whole files only."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        partial = folder / f".{name}.partial"
        partial.write_bytes(data)
        partial.replace(folder / name)
