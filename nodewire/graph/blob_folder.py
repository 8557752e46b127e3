"""What a registration leaves in a folder: programs and weights, each file named by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from nodewire.protocol.manifest import BlobRef
from nodewire.weights.tensorfile import Assembled, write

MANIFEST = "manifest.msgpack"
"""Beside the blobs: the manifest that cites them, packed as it is published."""


class BlobFolder:
    """`paths` has all that was written, by hash. The folder is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def program(self, data: bytes) -> BlobRef:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.folder / sha256
        path.write_bytes(data)
        return self._noted(sha256, path)

    def weights(self, tensors: Mapping[str, Assembled]) -> BlobRef:
        """A safetensors file of `tensors`, read and written in pieces. Raises BadTask as `write`."""
        return self._noted(*write(self.folder, tensors.items()))

    def _noted(self, sha256: str, path: Path) -> BlobRef:
        self.paths[sha256] = path
        return BlobRef(sha256=sha256, bytes=path.stat().st_size)
