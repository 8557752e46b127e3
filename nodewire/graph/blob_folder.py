"""What a registration leaves in a folder: programs and weights, each file named by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from nodewire.protocol.manifest import BlobRef


class BlobFolder:
    """`paths` has all that was written, by hash; `folder` is there before anything is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}

    def program(self, data: bytes) -> BlobRef:
        path = self.folder / "program.partial"
        path.write_bytes(data)
        return self._named(path)

    def weights(self, tensors: Mapping[str, torch.Tensor]) -> BlobRef:
        """A safetensors file of `tensors`."""
        path = self.folder / "weights.partial"
        save_file(dict(tensors), path)
        return self._named(path)

    def _named(self, path: Path) -> BlobRef:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        self.paths[sha256] = path.rename(self.folder / sha256)
        return BlobRef(sha256=sha256, bytes=size)
