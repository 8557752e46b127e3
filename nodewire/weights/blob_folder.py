"""What a registration leaves in a folder: programs and weights, each file named by its SHA-256.

Or, of a dry run, only how large each would be: then nothing is written, and of weights nothing is read but types.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from nodewire.protocol.model.manifest import BlobRef
from nodewire.weights.tensorfile import AssembledTensor, StoredTensor, hashed, laid_out, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST = "manifest.msgpack"
"""Beside the blobs: the manifest that cites them, packed as it is published."""
UNREAD = "0" * 32
"""How the hash of a file begins that was not made; what follows tells it from others."""


class BlobFolder:
    """`paths` has all that was written, by hash. The folder is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def blob(self, data: bytes) -> BlobRef:
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.folder / sha256
        path.write_bytes(data)
        return self._noted(sha256, path)

    def weights(self, tensors: Mapping[str, StoredTensor | AssembledTensor]) -> BlobRef:
        """A safetensors file of `tensors`, read and written in pieces. Raises BadTask as `write`."""
        return self._noted(*write(self.folder, tensors.items()))

    def hashed(self, tensors: Mapping[str, StoredTensor | AssembledTensor]) -> BlobRef:
        """What `weights` would write, which is only read here."""
        sha256, nbytes = hashed(tensors.items())
        return BlobRef(sha256=sha256, bytes=nbytes)

    def _noted(self, sha256: str, path: Path) -> BlobRef:
        self.paths[sha256] = path
        return BlobRef(sha256=sha256, bytes=path.stat().st_size)


class BlobSizes:
    """As BlobFolder, of a dry run: what it would write is cited with its true size.

    Weights, which nobody has read, have no hash: what stands for it begins with UNREAD, and is another for tensors of
    other names or types.
    """

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}

    def blob(self, data: bytes) -> BlobRef:
        return BlobRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    def weights(self, tensors: Mapping[str, StoredTensor | AssembledTensor]) -> BlobRef:
        """Raises BadTask as `laid_out`."""
        head, nbytes = laid_out(tensors.items())
        return BlobRef(sha256=UNREAD + hashlib.sha256(head).hexdigest()[len(UNREAD) :], bytes=nbytes)

    hashed = weights


def blobs_in(folder: Path | None) -> BlobFolder | BlobSizes:
    """Where a registration's blobs go; nowhere if it is a dry run."""
    return BlobSizes() if folder is None else BlobFolder(folder)
