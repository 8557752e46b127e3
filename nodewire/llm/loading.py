"""Reads exactly the tensors that a program names from safetensors files, after checking all that the header says."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import torch
from safetensors import SafetensorError, safe_open

from nodewire.errors import BadTask, TooLarge

MAX_HEADER_BYTES = 8_388_608
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SAFETENSORS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def load(
    files: Sequence[Path], shapes: Mapping[str, tuple[int, ...]], *, stored: str, compute: str, exact: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors in `shapes`, cast to `compute`. With `exact`, the files must hold no others.

    Raises:
        BadTask: a tensor is missing, extra, or of another shape or dtype than the program says.
        TooLarge: a header above its cap.
    """
    found: dict[str, Path] = {}
    for path in files:
        for name, (dtype, shape) in header(path).items():
            if name not in shapes:
                if exact:
                    raise BadTask(name[:120], "not one of this task's tensors")
                continue
            if shape != shapes[name]:
                raise BadTask(name, f"shape {list(shape)}, the program says {list(shapes[name])}")
            if dtype != _SAFETENSORS[stored]:
                raise BadTask(name, f"dtype {dtype}, the program says {stored}")
            found[name] = path
    if missing := sorted(set(shapes) - found.keys()):
        raise BadTask(missing[0], "missing from the weights")
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        with _open(path) as file:
            for name in (n for n, p in found.items() if p == path):
                tensors[name] = file.get_tensor(name).to(DTYPES[compute])
    return tensors


def header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes in a safetensors file, nothing of it allocated.

    Raises:
        BadTask: not a safetensors file. TooLarge: its header is above 8 MiB.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise BadTask("weights", "not a safetensors file")
            (length,) = struct.unpack("<Q", start)
            if length > MAX_HEADER_BYTES:
                raise TooLarge("weights", f"a header of {length} bytes, at most {MAX_HEADER_BYTES}")
            table = orjson.loads(file.read(length))
    except (OSError, orjson.JSONDecodeError) as error:
        raise BadTask("weights", "not a safetensors file") from error
    try:
        return {
            str(name): (str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
            for name, entry in table.items()
            if name != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadTask("weights", "a malformed header") from error


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise BadTask("weights", f"refused by safetensors: {error}"[:200]) from error
