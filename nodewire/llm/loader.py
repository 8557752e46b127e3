"""Weights from a file into a task's tensors: what the file holds must be what the program's table says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from nodewire.errors import BadTask
from nodewire.llm.layers import Fill
from nodewire.llm.programs import TensorType
from nodewire.weights.tensorfile import Stored, read_header, read_into


def open_weights(path: Path, table: Mapping[str, TensorType]) -> Fill:
    """Check a weights file against a program's table; what then fills a task's tensors by name.

    Only the header is read here; nothing is allocated for a file that does not match.

    Raises:
        TooLarge, BadTask: the header is malformed, or a tensor is missing, extra, or of another shape or dtype.
    """
    stored = read_header(path)
    if stored.keys() != table.keys():
        name = min(stored.keys() ^ table.keys())
        raise BadTask(f"weights.{name[:80]}", "not in the program" if name in stored else "missing")
    for name, kind in table.items():
        if (stored[name].dtype, stored[name].shape) != (kind.dtype, kind.shape):
            found = f"{stored[name].dtype[:20]} {list(stored[name].shape)}"
            raise BadTask(f"weights.{name}", f"{found}, the program says {kind.dtype} {list(kind.shape)}")
    return filler(stored)


def filler(stored: Mapping[str, Stored]) -> Fill:
    def fill(name: str, target: Tensor) -> None:
        read_into(stored[name], target)

    return fill
