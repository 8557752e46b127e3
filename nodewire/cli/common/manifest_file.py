"""A manifest out of a file: JSON, the packed blob, or the one in a folder of blobs."""

from __future__ import annotations

import re
from pathlib import Path

from nodewire.errors import BadConfig, BadInput, NotFound
from nodewire.protocol.model.manifest import Manifest

NAMES = ("manifest.json", "manifest.msgpack", "manifest")
"""What a manifest is called in a folder."""
_BLOB = re.compile(r"[0-9a-f]{64}")


def read_manifest(path: Path) -> Manifest:
    """A manifest in a file, as JSON or packed, or in a folder of blobs.

    Raises:
        BadConfig: it cannot be read.
        NotFound: the folder holds none.
        BadManifest, BadVersion, TooLarge: it is none.

    """
    try:
        if not path.is_dir():
            return _parsed(path)
        for name in NAMES:
            if (path / name).is_file():
                return _parsed(path / name)
        blobs = [one for one in sorted(path.iterdir()) if _BLOB.fullmatch(one.name)]
        for blob in blobs:
            if blob.stat().st_size <= Manifest.MAX_BYTES:
                try:
                    return Manifest.unpack(blob.read_bytes())
                except BadInput:
                    continue  # a program, or weights
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror or error}") from error
    cut = "; `nodewire register --out` leaves one of this model" if (path / "config.json").exists() else ""
    raise NotFound(str(path), f"holds no {' or '.join(NAMES[:2])}, and no blob of it is a manifest{cut}")


def _parsed(path: Path) -> Manifest:
    with path.open("rb") as file:
        data = file.read(Manifest.MAX_BYTES * 2 + 1)
    return Manifest.parse(data) if data[:1].isspace() or data[:1] == b"{" else Manifest.unpack(data)
