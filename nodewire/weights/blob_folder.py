"""What a registration leaves in a folder: programs and weights, each file named by its SHA-256.

Or, of a dry run, only how large each would be: then nothing is written, and of weights nothing is read but types.
"""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, TooLarge
from nodewire.protocol.encoding.byte_sizes import at_least, in_units
from nodewire.protocol.model.manifest import MAX_BLOB_BYTES, MAX_WEIGHT_FILES, BlobRef
from nodewire.weights.tensorfile import AssembledTensor, StoredTensor, hashed, in_files, laid_out, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Tensors = Mapping[str, StoredTensor | AssembledTensor]

MANIFEST = "manifest.msgpack"
"""Beside the blobs: the manifest that cites them, packed as it is published."""
UNREAD = "0" * 32
"""How the hash of a file begins that was not made; what follows tells it from others."""
FILE_BYTES = 1024**3
"""Bytes of tensors in a file: an upload that breaks off begins anew, and stores take no blobs of any size."""


def weight_files(tensors: Tensors) -> list[dict[str, StoredTensor | AssembledTensor]]:
    """A task's tensors, as the files have them in which they are published.

    Raises:
        TooLarge: they cannot be: a tensor is larger than a blob, or more files are needed than a task has.
        BadTask: as `in_files`.

    """
    for name, one in tensors.items():
        if one.nbytes > MAX_BLOB_BYTES:
            raise TooLarge(
                name[:160],
                f"has {in_units(one.nbytes)}, and nodes fetch no blob over {in_units(MAX_BLOB_BYTES)}: store the model"
                f" in 16 bits, or cut it --as-tensors by `--target-vram {at_least(FILE_BYTES)}`",
            )
    files = in_files(tensors, FILE_BYTES)
    if len(files) > MAX_WEIGHT_FILES:
        enough = at_least(MAX_WEIGHT_FILES // 4 * FILE_BYTES)  # two files in a row have more than one's bytes
        raise TooLarge(
            "weights",
            f"{len(files)} files for one piece, which may have {MAX_WEIGHT_FILES}: `--target-vram {enough}` would do",
        )
    return files


def check_room(folder: Path, nbytes: int) -> None:
    """Raises BadInput: the disk of a folder, which need not be there yet, has no room for so many bytes."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if (free := shutil.disk_usage(there).free) < nbytes:
        raise BadInput(
            str(folder),
            f"the pieces need {in_units(nbytes)}, and {in_units(free)} are free there: name a folder with more room"
            " (--scratch, or --out where nothing is published)",
        )


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

    def weights(self, tensors: Tensors) -> tuple[BlobRef, ...]:
        """Safetensors files of `tensors`, read and written in pieces. Raises TooLarge, BadTask."""
        return tuple(self._noted(*write(self.folder, one.items())) for one in weight_files(tensors))

    def hashed(self, tensors: Tensors) -> tuple[BlobRef, ...]:
        """What `weights` would write, which is only read here."""
        made = (hashed(one.items()) for one in weight_files(tensors))
        return tuple(BlobRef(sha256=sha256, bytes=nbytes) for sha256, nbytes in made)

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

    def weights(self, tensors: Tensors) -> tuple[BlobRef, ...]:
        """Raises TooLarge, BadTask."""
        made = (laid_out(one.items()) for one in weight_files(tensors))
        return tuple(
            BlobRef(sha256=UNREAD + hashlib.sha256(head).hexdigest()[len(UNREAD) :], bytes=nbytes)
            for head, nbytes in made
        )

    hashed = weights


def blobs_in(folder: Path | None) -> BlobFolder | BlobSizes:
    """Where a registration's blobs go; nowhere if it is a dry run."""
    return BlobSizes() if folder is None else BlobFolder(folder)
