"""Weights from files into a task's parameters: what the files hold must be what the program's table says."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from nodewire.errors import BadTask
from nodewire.llm.programs.programs import TensorType, stored_type
from nodewire.llm.spec.parameters import TURNED, Parameters, lies_in_columns
from nodewire.weights import mxfp4, nvfp4
from nodewire.weights.tensorfile import StoredTensor, elements, read_header, read_into

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nodewire.llm.families.fields.tensor_names import Piece, Pieces

MXFP4_BLOCKS = 8_192
"""Blocks that are decoded at once, those of NVFP4 too."""


class Fill(Protocol):
    def __call__(self, name: str, target: Tensor, first: int = 0) -> None:
        """Copy the tensor of that checkpoint name, from its element `first` on, into a contiguous `target`."""


def open_weights(files: Sequence[Path], table: Mapping[str, TensorType]) -> Fill:
    """Check a task's files of weights against its program's table; what then fills the task's tensors by name.

    Only headers are read here; nothing is allocated for files that do not match.

    Raises:
        TooLarge, BadTask: a header is malformed, or a tensor is missing, extra, stored twice, or of another type.

    """
    stored: dict[str, StoredTensor] = {}
    for path in files:
        own = read_header(path)
        if not own:
            raise BadTask("weights", "a file has no tensors")
        if twice := stored.keys() & own.keys():
            raise BadTask(f"weights.{min(twice)[:80]}", "in two files")
        stored |= own
    if stored.keys() != table.keys():
        name = min(stored.keys() ^ table.keys())
        raise BadTask(f"weights.{name[:80]}", "not in the program" if name in stored else "missing")
    for name, kind in table.items():
        found = stored_type(stored[name])
        if found != (kind.dtype, kind.shape):
            said = f"{found[0][:20]} {list(found[1])}"
            raise BadTask(f"weights.{name}", f"{said}, the program says {kind.dtype} {list(kind.shape)}")
    return filler(stored)


def filler(stored: Mapping[str, StoredTensor]) -> Fill:
    def fill(name: str, target: Tensor, first: int = 0) -> None:
        read_into(elements(stored[name], first, first + target.numel()), target)

    return fill


def load(
    parameters: Parameters, pieces: Pieces, fill: Fill, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The parameters in memory, each put together from its pieces; all of `dtype` but those that are exact.

    Those that stay in blocks are left out (nodewire.llm.quant.loader).

    Raises:
        BadTask: the file ends early, or holds a number that is not finite.

    """
    found = {}
    for role, parameter in parameters.items():
        if parameter.blocks is not None:
            continue
        kind = torch.float32 if parameter.exact else dtype
        turned = kind == torch.float32 and device.type == "cpu" and lies_in_columns(role, parameter)
        if (
            turned
            and not parameter.offset
            and all(piece.form == "plain" and piece.blocks is None for piece in pieces[role])
        ):
            found[role] = _filled_in_columns(parameter.shape, pieces[role], fill)
            continue
        found[role] = target = torch.empty(parameter.shape, dtype=kind, device=device)
        flat, at = target.view(-1), 0
        for piece in pieces[role]:
            _read(piece, flat[at : at + piece.count], fill)
            at += piece.count
        if parameter.offset:
            target += parameter.offset
        if turned:
            found[role] = _in_columns(target)
    return found


def _filled_in_columns(shape: tuple[int, ...], pieces: Sequence[Piece], fill: Fill) -> Tensor:
    """A matrix of float32, column after column, some rows at a time."""
    rows, width = shape
    found, at = torch.empty(width, rows).t(), 0
    beside = torch.empty(min(rows, max(1, TURNED // width)), width)
    for piece in pieces:
        for first in range(0, piece.count // width, len(beside)):
            some = beside[: piece.count // width - first]
            fill(piece.name, some, first * width)
            found[at : at + len(some)] = some
            at += len(some)
    return found


def _in_columns(matrix: Tensor) -> Tensor:
    """The same, column after column where it was row after row.

    It goes by way of the kernel's own memory, for what malloc gets back of another copy it keeps. A worker may map
    private memory only (nodewire.worker.sandbox.seccomp).
    """
    rows, width = matrix.shape
    with mmap.mmap(-1, matrix.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as beside:
        turned = torch.frombuffer(beside, dtype=matrix.dtype).view(width, rows)
        matrix.view(width, rows).copy_(turned.copy_(matrix.t()))
        del turned
    return matrix.view(width, rows).t()


def _read(piece: Piece, flat: Tensor, fill: Fill) -> None:
    if piece.blocks is not None:
        _nvfp4(piece, flat, fill)
    elif piece.form == "plain":
        fill(piece.name, flat)
    elif piece.form == "transposed":
        _transposed(piece, flat, fill)
    elif piece.form == "paired":
        _halved(piece, flat, fill)
    elif piece.form == "grouped":
        _ungrouped(piece, flat, fill)
    else:
        _unpacked(piece, flat, fill)


def _transposed(piece: Piece, flat: Tensor, fill: Fill) -> None:
    """Matrices [..., in, out] to [..., out, in], one at a time."""
    inner, outer = piece.shape[-2:]
    matrix = torch.empty(inner, outer, dtype=flat.dtype, device=flat.device)
    for number, target in enumerate(flat.view(-1, outer, inner)):
        fill(piece.name, matrix, number * inner * outer)
        target.copy_(matrix.T)


def _halved(piece: Piece, flat: Tensor, fill: Fill) -> None:
    """Rows of one head at a time: of each pair the first in one half, the second in the other."""
    width = piece.count // (piece.heads * piece.head_dim)
    head = torch.empty(piece.head_dim, width, dtype=flat.dtype, device=flat.device)
    for number, target in enumerate(flat.view(piece.heads, 2, -1, width)):
        fill(piece.name, head, number * head.numel())
        target.copy_(head.view(-1, 2, width).transpose(0, 1))


def _ungrouped(piece: Piece, flat: Tensor, fill: Fill) -> None:
    """Each key's queries, then itself, then its value, to where their kind is kept."""
    every = piece.shape[0] // piece.head_dim
    group, unit = every // piece.heads - 2, piece.count // every
    queries = flat[: piece.heads * group * unit].view(piece.heads, -1)
    keys, values = flat[queries.numel() :].view(2, piece.heads, unit)
    for number in range(piece.heads):
        at = number * (group + 2) * unit
        for target in (queries[number], keys[number], values[number]):
            fill(piece.name, target, at)
            at += len(target)


def _unpacked(piece: Piece, flat: Tensor, fill: Fill) -> None:
    """Blocks of MXFP4, so many at a time."""
    total, packed = len(flat) // mxfp4.GROUP, mxfp4.GROUP // 2
    blocks = torch.empty(MXFP4_BLOCKS, packed, dtype=torch.uint8)
    scales = torch.empty(MXFP4_BLOCKS, dtype=torch.uint8)
    for first in range(0, total, MXFP4_BLOCKS):
        n = min(MXFP4_BLOCKS, total - first)
        fill(piece.name, blocks[:n], first * packed)
        fill(piece.scales, scales[:n], first)
        target = flat[first * mxfp4.GROUP : (first + n) * mxfp4.GROUP]
        target.copy_(mxfp4.decoded(blocks[:n], scales[:n]).view(-1))
        if not bool(torch.isfinite(target).all()):
            raise BadTask("weights", "a weight is not finite")


def _nvfp4(piece: Piece, flat: Tensor, fill: Fill) -> None:
    """As `_unpacked`."""
    total, packed, at = len(flat) // nvfp4.GROUP, nvfp4.GROUP // 2, f"{piece.stem}.weight"
    octets = torch.empty(MXFP4_BLOCKS, packed, dtype=torch.uint8)
    scales, divisor = torch.empty(MXFP4_BLOCKS), torch.empty(1)
    fill(f"{at}_global_scale", divisor)
    for first in range(0, total, MXFP4_BLOCKS):
        n = min(MXFP4_BLOCKS, total - first)
        fill(f"{at}_packed", octets[:n], first * packed)
        fill(f"{at}_scale", scales[:n], first)
        target = flat[first * nvfp4.GROUP : (first + n) * nvfp4.GROUP]
        target.copy_(nvfp4.decoded(octets[:n], scales[:n], divisor).view(-1))
        if not bool(torch.isfinite(target).all()):
            raise BadTask("weights", "a weight is not finite")
