"""Results that are made and not delivered yet, on disk: who dies while it uploads one does not train for it again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.store import sealed_blobs
from nodewire.training.protocol.result import DeliveryDetails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class MadeResults:
    """In a folder, by request: the sealed update, and what its delivery says of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder

    def keep(self, request: str, made: DeliveryDetails, pieces: Sequence[bytes]) -> Path:
        """The sealed update as a file. On disk when this returns, the words last: without them it is not made."""
        path, said = self._paths(request)
        _write(path, sealed_blobs.seal(pieces, made.key))
        _write(said, [made.to_json().encode()])
        return path

    def find(self, request: str) -> tuple[Path, DeliveryDetails] | None:
        """What `keep` has kept; None if it has not come to that."""
        path, said = self._paths(request)
        try:
            return path, DeliveryDetails.parse(said.read_text())
        except (FileNotFoundError, BadInput):
            return None

    def remove(self, request: str) -> None:
        """It is delivered, or never will be."""
        for path in reversed(self._paths(request)):
            path.unlink(missing_ok=True)

    def only(self, requests: Sequence[str]) -> None:
        """Remove what is not of these."""
        for path in self._folder.iterdir():
            if path.name.partition(".")[0] not in requests:
                path.unlink()

    def _paths(self, request: str) -> tuple[Path, Path]:
        return self._folder / f"{request}.sealed", self._folder / f"{request}.json"


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
