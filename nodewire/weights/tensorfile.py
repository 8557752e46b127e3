"""The safetensors format: a bounded, strict reader of headers, a piecewise reader of data, a streaming writer.

https://github.com/huggingface/safetensors: u64 little-endian header length, JSON header, raw tensors without gaps.
The library maps whole files into memory; a capped worker must not, so tensors are read in pieces to where they go.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from nodewire.errors import BadTask, TooLarge
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF, DTYPE_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MAX_HEADER_BYTES = 16 * 1_048_576
PIECE_BYTES = 262_144

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtypes that weights may be stored in."""
CODES: Mapping[torch.dtype, str] = {getattr(torch, name): code for name, code in CODE_OF.items()}
_OTHERS = {
    CODES[dtype]: dtype
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn)
}
"""What tasks of graphs hold besides: positions, masks, counts; and quantized weights, with their scales."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in a file: `nbytes` from byte `start`. `dtype` is a key of DTYPES, or the file's own code.

    Of a file that stores it otherwise (nodewire.weights.gguf_rows) both count the bytes that are made of what is there.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def octets(self) -> Iterator[memoryview]:
        """Its bytes in pieces of whole elements, each to be used before the next is asked for.

        Raises:
            BadTask: the file ends early.

        """
        buffer = bytearray(min(PIECE_BYTES, self.nbytes))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start)
            left = self.nbytes
            while left:
                view = memoryview(buffer)[:left]
                if file.readinto(view) != len(view):
                    raise BadTask("weights", "the file ends within a tensor")
                left -= len(view)
                yield view


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, checked against its size.

    Raises:
        TooLarge: the header is longer than 16 MiB.
        BadTask: the header is malformed, or its tensors overlap, leave gaps or do not fill the file.

    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise TooLarge("weights", f"a header of {length} bytes, at most {MAX_HEADER_BYTES}")
        if size < 8 + length:
            raise BadTask("weights", "cut short: the file ends before its header does")
        header = file.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        table = {name: _entry(path, 8 + length, entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadTask("weights", "the header is not one of safetensors") from error
    end = 8 + length
    for stored in sorted(table.values(), key=lambda stored: (stored.start, stored.nbytes)):
        if stored.start != end:
            raise BadTask("weights", "tensors overlap or leave gaps")
        end += stored.nbytes
    if end != size:
        short = "cut short: " if size < end else ""
        raise BadTask("weights", f"{short}tensors end at byte {end}, the file at {size}")
    return table


def _entry(path: Path, origin: int, entry: Mapping[str, Any]) -> StoredTensor:
    code, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or not isinstance(shape, list) or len(shape) > 8:
        raise ValueError("dtype or shape")
    if any(type(n) is not int or not 0 <= n < 2**48 for n in (*shape, start, end)) or end < start:
        raise ValueError("a number out of range")
    dtype = name if (name := DTYPE_OF.get(code)) in DTYPES else code
    known = DTYPES.get(dtype, _OTHERS.get(dtype))
    if known is not None and prod(shape) * known.itemsize != end - start:
        raise ValueError("shape and offsets disagree")
    return StoredTensor(path, dtype, tuple(shape), origin + start, end - start)


def read_into(stored: StoredTensor, target: Tensor) -> None:
    """Copy a stored tensor into `target` (contiguous, as many elements), converting to its dtype piece by piece.

    Raises:
        BadTask: the file ends early, or holds a number that is not finite.

    """
    flat, dtype, at = target.view(-1), _dtype(stored), 0
    for view in stored.octets():
        piece = torch.frombuffer(view, dtype=dtype)
        copied = flat[at : at + len(piece)].copy_(piece)
        if not bool(torch.isfinite(copied).all()):
            raise BadTask("weights", "a weight is not finite")
        at += len(piece)


@dataclass(frozen=True, slots=True)
class AssembledTensor:
    """A tensor to be written: `parts` end to end, each stored or held in memory, converted to `dtype`."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[StoredTensor | Tensor, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@overload
def elements(part: StoredTensor, first: int, last: int) -> StoredTensor: ...
@overload
def elements(part: StoredTensor | Tensor, first: int, last: int) -> StoredTensor | Tensor: ...
def elements(part: StoredTensor | Tensor, first: int, last: int) -> StoredTensor | Tensor:
    """Elements [first, last) of a part, in its own order; nothing is read."""
    if isinstance(part, Tensor):
        return part.detach().reshape(-1)[first:last]
    size = _dtype(part).itemsize
    return replace(part, shape=(last - first,), start=part.start + first * size, nbytes=(last - first) * size)


def in_files(
    tensors: Mapping[str, StoredTensor | AssembledTensor], most_bytes: int
) -> list[dict[str, StoredTensor | AssembledTensor]]:
    """The tensors of each file, where one file may have so many bytes of them; a larger tensor has a file alone.

    They lie in the order of one file: a file begins with the tensor that the one before has no room for.

    Raises:
        BadTask: a stored tensor is of an unknown dtype.

    """
    found: list[dict[str, StoredTensor | AssembledTensor]] = []
    room = -1
    for name, made in _in_order(tensors.items()):
        room -= made.nbytes
        if room < 0:
            found.append({})
            room = most_bytes - made.nbytes
        found[-1][name] = tensors[name]
    return found


def laid_out(tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]]) -> tuple[bytes, int]:
    """How a file of `tensors` would begin (its header, and before it the header's length), and how long it would be.

    Nothing is read, and an Assembled needs no parts.

    Raises:
        BadTask: a stored tensor is of an unknown dtype.

    """
    head, rows = _laid_out(tensors)
    return head, len(head) + sum(made.nbytes for _, made in rows)


def write(folder: Path, tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]]) -> tuple[str, Path]:
    """Write tensors into one new file of `folder`, named by its SHA-256; its hash and path.

    Bytes are copied as they are or converted, in pieces; the same tensors give the same file.

    Raises:
        BadTask: a stored tensor is cut short, of an unknown dtype, or not as large as its shape.

    """
    head, rows = _whole(tensors)
    partial = folder / f".{os.getpid()}.partial"
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            for data in _file_bytes(head, [made for _, made in rows]):
                digest.update(data)
                out.write(data)
        path = folder / digest.hexdigest()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path.name, path


def hashed(tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]]) -> tuple[str, int]:
    """The SHA-256 and the length of what `write` would write. Raises as it."""
    head, rows = _whole(tensors)
    digest, nbytes = hashlib.sha256(), 0
    for data in _file_bytes(head, [made for _, made in rows]):
        digest.update(data)
        nbytes += len(data)
    return digest.hexdigest(), nbytes


def _whole(
    tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]],
) -> tuple[bytes, list[tuple[str, AssembledTensor]]]:
    """As `_laid_out`, of what can be written. Raises BadTask."""
    head, rows = _laid_out(tensors)
    for name, made in rows:
        if sum(map(_count, made.parts)) != prod(made.shape):
            raise BadTask(name[:160], f"its parts do not make up {list(made.shape)}")
    return head, rows


def _laid_out(
    tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]],
) -> tuple[bytes, list[tuple[str, AssembledTensor]]]:
    rows = _in_order(tensors)
    header, end = {}, 0
    for name, made in rows:
        header[name] = {
            "dtype": CODES[made.dtype],
            "shape": list(made.shape),
            "data_offsets": [end, end := end + made.nbytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, rows


def _in_order(
    tensors: Iterable[tuple[str, StoredTensor | AssembledTensor]],
) -> list[tuple[str, AssembledTensor]]:
    """The widest types first, so that every tensor starts at a multiple of its item's size; then by name."""
    return sorted(((name, _assembled(one)) for name, one in tensors), key=lambda row: (-row[1].dtype.itemsize, row[0]))


def read(made: AssembledTensor) -> Tensor:
    """The tensor in memory.

    Raises:
        BadTask: as `write`.

    """
    data = bytearray(made.nbytes)
    at = 0
    for piece in _tensor_bytes(made):
        if at + len(piece) > len(data):
            break
        data[at : (at := at + len(piece))] = piece
    if at != len(data):
        raise BadTask("weights", f"its parts do not make up {list(made.shape)}")
    return torch.frombuffer(data, dtype=made.dtype).reshape(made.shape) if data else torch.zeros(made.shape)


def _assembled(one: StoredTensor | AssembledTensor) -> AssembledTensor:
    return AssembledTensor(_dtype(one), one.shape, (one,)) if isinstance(one, StoredTensor) else one


def _dtype(stored: StoredTensor) -> torch.dtype:
    found = DTYPES.get(stored.dtype, _OTHERS.get(stored.dtype))
    if found is None:
        raise BadTask("weights", f"dtype {stored.dtype[:20]!r} is not one that tasks know")
    return found


def _count(part: StoredTensor | Tensor) -> int:
    return part.numel() if isinstance(part, Tensor) else part.nbytes // _dtype(part).itemsize


def _file_bytes(head: bytes, rows: list[AssembledTensor]) -> Iterable[bytes | memoryview]:
    yield head
    for made in rows:
        yield from _tensor_bytes(made)


def _tensor_bytes(made: AssembledTensor) -> Iterable[bytes | memoryview]:
    for part in made.parts:
        if isinstance(part, Tensor):
            own, pieces = part.dtype, _held_bytes(part)
        else:
            own, pieces = _dtype(part), part.octets()
        for piece in pieces:
            if own != made.dtype:
                piece = _bytes(torch.frombuffer(bytearray(piece), dtype=own).to(made.dtype))
            yield piece


def _held_bytes(tensor: Tensor) -> Iterable[bytes | memoryview]:
    flat = tensor.detach().reshape(-1)
    step = PIECE_BYTES // flat.dtype.itemsize
    for first in range(0, len(flat), step):
        yield _bytes(flat[first : first + step].cpu())


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().data)
