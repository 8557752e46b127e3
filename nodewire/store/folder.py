"""The files of a customer's folder: what may be read there, how much it is, and in which order it is one data set."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from nodewire.errors import BadData, NotFound, TooLarge

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILES = 100_000
MAX_BYTES = 2**35


def listed(path: Path, field: str) -> tuple[list[Path], int]:
    """The files at `path`, a file or a folder (hidden ones left out), in the order of their names, and their bytes.

    The order is that of relative POSIX paths: which sample stands in which shard follows from it.

    Args:
        path: a file, or a folder with all that is below it.
        field: what errors name.

    Raises:
        NotFound: nothing is there.
        BadData: a link leads out of the folder.
        TooLarge: more than 100,000 files or 32 GiB; nothing was read.

    """
    files: list[Path] = []
    if path.is_file():
        files.append(path)
    elif path.is_dir():
        whole = path.resolve()
        for file in path.rglob("*"):
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
                if file.is_symlink() and not file.resolve().is_relative_to(whole):
                    name = str(file.relative_to(path))[:80]
                    raise BadData(field, f"{name} leads out of the folder: copy what strangers may train on into it")
                files.append(file)
                if len(files) > MAX_FILES:
                    raise TooLarge(field, f"over {MAX_FILES} files")
    else:
        raise NotFound(field, f"nothing at {path}")
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        raise TooLarge(field, f"{size} bytes, at most {MAX_BYTES}")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix()), size


def digest(path: Path, field: str) -> str:
    """SHA-256 of the digests of the files at `path`, in their order.

    It is of the data set, wherever it stands and whatever its files are called. Reads all of them. Raises as `listed`.
    """
    whole = hashlib.sha256()
    for file in listed(path, field)[0]:
        with file.open("rb") as opened:
            whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()
