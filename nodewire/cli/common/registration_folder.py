"""What `nodewire.register` or `nodewire register --out` left in a folder, manifest and blobs, read to be published."""

from __future__ import annotations

from pathlib import Path

from nodewire.cli.common.manifest_file import NAMES, read_manifest
from nodewire.cli.output import counted
from nodewire.errors import BadInput, NotFound
from nodewire.kind import Registration

SOURCES = ("config.json", "recipe.json")
"""Of a model that is yet to be cut."""


def is_registered(folder: Path) -> bool:
    """Whether a manifest lies in `folder`, and no model that it could be of."""
    return any((folder / name).is_file() for name in NAMES) and not any((folder / one).exists() for one in SOURCES)


def registration_in(folder: Path, name: str = "") -> Registration:
    """The manifest in a folder, under `name` if one is given, and its blobs there.

    Raises:
        NotFound, BadInput: a blob is missing, or not as long as the manifest says.
        BadConfig, BadManifest, BadVersion, TooLarge: as `read_manifest`.

    """
    manifest = read_manifest(folder)
    if name:
        manifest = type(manifest).from_document({**manifest.document(), "name": name})
    blobs: dict[str, Path] = {}
    cited = [(task.name, blob) for task in manifest.tasks for blob in (task.program, *task.weights)]
    for of, blob in [*cited, *([("chat", manifest.chat)] if manifest.chat is not None else [])]:
        path = folder / blob.sha256
        if not path.is_file():
            raise NotFound(str(path), f"a blob of {of}, which the manifest cites")
        if path.stat().st_size != blob.bytes:
            raise BadInput(str(path), f"{path.stat().st_size} bytes; {of} in the manifest has {blob.bytes}")
        blobs[blob.sha256] = path
    largest = max(manifest.tasks, key=lambda task: task.memory_bytes)
    report = f"{manifest.name}: {counted(len(manifest.tasks), 'task')}, the largest {largest.name} of "
    return Registration(manifest, blobs, (f"{report}{largest.memory_bytes / 1e6:,.1f} MB",))
