"""Tensors in a customer's files: safetensors of every dtype that a model may have, and numpy's .npz and .npy.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

from numpy.lib.format import read_array
from safetensors import SafetensorError, deserialize

from nodewire.errors import BadConfig, BadInput
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF, DTYPE_OF

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

_MAX_HEADER_BYTES = 16 * 2**20
_DTYPES = {code: dtype for code, dtype in DTYPE_OF.items() if dtype in ITEM_BYTES}
"""Those of tensors that travel."""


def read(path: Path) -> dict[str, Any]:
    """The tensors in a file by name: arrays as they travel, or numpy's; the one in a .npy has the file's name.

    Raises:
        BadConfig: the file cannot be read.
        BadInput: it is of none of these formats, or has a dtype that no model takes.

    """
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return {path.stem: read_array(file)}
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
        raw = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(str(path), _cut_short(path) or "not a safetensors, .npz or .npy file of tensors") from error
    return {name: _array(path, name, one) for name, one in raw}


def _cut_short(path: Path) -> str:
    """Where a safetensors file ends too early; "" if it does not, or is none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        ends = [entry["data_offsets"][1] for name, entry in json.loads(text).items() if name != "__metadata__"]
        end, size = 8 + length + max(ends, default=0), path.stat().st_size
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return ""
    return f"cut short: tensors end at byte {end}, the file at {size}" if end > size else ""


def write(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file. Raises BadConfig: it cannot be written."""
    header, end = {}, 0
    rows = sorted(tensors.items())
    for name, array in rows:
        span = [end, end := end + array.nbytes]
        header[name] = {"dtype": CODE_OF[array.dtype], "shape": list(array.shape), "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, array in rows:
                file.write(array.data)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be written: {error.strerror or error}") from error


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as file:
        found: np.ndarray = read_array(file)  # of objects it reads none
    return found


def _array(path: Path, name: str, one: Mapping[str, Any]) -> Array:
    if one["dtype"] not in _DTYPES:
        raise BadInput(name[:80], f"{one['dtype']} in {path.name}; models take {', '.join(_DTYPES.values())}")
    return Array(_DTYPES[one["dtype"]], tuple(one["shape"]), bytes(one["data"]))
