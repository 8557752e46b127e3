"""States: a model's trained tensors by name, in memory, as safetensors bytes, and as a hash.

A State is float32, contiguous and in the family's order. Bytes from others are checked against the names, dtypes and
shapes that are expected before a tensor is made of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nodewire.errors import BadData, BadTask, TooLarge
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.families import HEADER_BYTES, Shapes
from nodewire.weights.tensorfile import CODES, DTYPES, StoredTensor, read_header, read_into

if TYPE_CHECKING:
    from pathlib import Path

State = Mapping[str, Tensor]
Types = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""What is expected of each tensor; a dimension of -1 may be any."""


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a safetensors file: the widest types first, then by name; equal tensors give equal bytes."""
    return b"".join(parts(tensors))


def parts(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The file's header, and the tensors' own bytes where they stand: what `pack` joins."""
    rows = sorted(tensors.items(), key=lambda row: (-row[1].dtype.itemsize, row[0]))
    header, end = {}, 0
    for name, tensor in rows:
        span = [end, end := end + tensor.numel() * tensor.dtype.itemsize]
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(view(tensor) for _, tensor in rows)]


def unpack(data: bytes, expected: Types, *, field: str = "tensors") -> dict[str, Tensor]:
    """The tensors in safetensors bytes, in the order of `expected`.

    Raises:
        TooLarge: the header is longer than `expected` can make it.
        BadData: the header is malformed; names, dtypes or shapes are not those expected, or tensors do not fill the
            bytes in order. The tensor is named.

    """
    coming = StateUnpacker(expected, len(data), field=field)
    coming.feed(memoryview(data))
    return coming.whole()


class StateUnpacker:
    """`unpack` of bytes that come in pieces: straight to where they stay, so that nothing is held twice."""

    def __init__(self, expected: Types, most: int, *, field: str = "tensors") -> None:
        """`most`: bytes that may come; no memory is taken for tensors that would be more."""
        self._expected, self._most, self._field = expected, most, field
        self._head = bytearray()
        """What has come while the header is not whole."""
        self._found: dict[str, Tensor] | None = None
        self._left: list[memoryview] = []
        """What is not filled yet of the tensors, the last first."""
        self._size = self._at = 0
        """Of the tensors together, and what has come of them."""

    def feed(self, piece: memoryview) -> None:
        """The next bytes. Raises as `unpack`, as soon as can be."""
        if self._found is None:
            piece = self._behind_header(piece)
        self._at += len(piece)
        while len(piece) and self._left:
            room = self._left.pop()
            n = min(len(room), len(piece))
            room[:n] = piece[:n]
            if n < len(room):
                self._left.append(room[n:])
            piece = piece[n:]
        if len(piece):
            raise BadData(self._field, f"tensors end at byte {self._size}, the data at {self._at}")

    def whole(self) -> dict[str, Tensor]:
        """The tensors, after the last bytes. Raises as `unpack`."""
        if self._found is None:
            raise BadData(self._field, "ends before its header does")
        if self._at < self._size:
            raise BadData(self._field, f"tensors end at byte {self._size}, the data at {self._at}")
        return self._found

    def _behind_header(self, piece: memoryview) -> memoryview:
        """What of the next bytes does not belong to the header."""
        before, most = len(self._head), most_header_bytes(self._expected)
        self._head += piece[: 8 + most - before]
        length = int.from_bytes(self._head[:8], "little")
        if length > most:
            raise TooLarge(self._field, f"a header of {length} bytes")
        if len(self._head) < 8 + length:
            return piece[len(piece) :]
        text, self._head = bytes(self._head[8 : 8 + length]), bytearray()
        self._make(text)
        return piece[8 + length - before :]

    def _make(self, text: bytes) -> None:
        expected, field = self._expected, self._field
        try:
            entries = json.loads(text.decode())  # of bytes json would take UTF-16 and UTF-32, too
            entries.pop("__metadata__", None)
            spans = {name: _span(name, entry, expected, field) for name, entry in entries.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadData(field, "the header is not one of safetensors") from error
        missing = next((name for name in expected if name not in spans), None)
        if missing is not None:
            raise BadData(f"{field}.{missing}", "missing")
        end = 0
        ordered = sorted(spans, key=lambda name: spans[name][:2])
        for start, stop, _ in (spans[name] for name in ordered):
            if start != end:
                raise BadData(field, "tensors overlap or leave gaps")
            end = stop
        if end > self._most - 8 - len(text):
            raise BadData(field, f"tensors end at byte {end}, the data at {self._most - 8 - len(text)}")
        self._size = end
        self._found = {name: torch.empty(spans[name][2], dtype=dtype) for name, (dtype, _) in expected.items()}
        self._left = [view(self._found[name]) for name in reversed(ordered) if self._found[name].numel()]


def most_header_bytes(expected: Types) -> int:
    """The longest header that `unpack` reads, its own length's 8 bytes not counted."""
    return HEADER_BYTES * (len(expected) + 1)


def _span(name: str, entry: dict[str, Any], expected: Types, field: str) -> tuple[int, int, tuple[int, ...]]:
    if name not in expected:
        raise BadData(field, f"unexpected tensor {name[:80]!r}")
    dtype, wanted = expected[name]
    code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or any(type(n) is not int or not 0 <= n < 2**48 for n in (*shape, start, stop)):
        raise ValueError("a number out of range")
    fits = len(shape) == len(wanted) and all(w in (-1, n) for n, w in zip(shape, wanted, strict=True))
    if code != CODES[dtype] or not fits:
        raise BadData(f"{field}.{name}", f"{str(code)[:8]} {str(shape)[:80]}, not {CODES[dtype]} {list(wanted)}")
    if stop - start != prod(shape) * dtype.itemsize:
        raise ValueError("shape and offsets disagree")
    return start, stop, tuple(shape)


def types(shapes: Shapes) -> Types:
    """What is expected of a State of these shapes."""
    return {name: (torch.float32, shape) for name, shape in shapes.items()}


def read(path: Path, shapes: Shapes) -> State:
    """The tensors of these names from a safetensors file of float32, bfloat16 or float16; it may hold others, too.

    Names in the file may stand below `bert.`, as checkpoints with a head have them.

    Raises:
        TooLarge, BadTask: the file is malformed, or a tensor is missing, of another shape, or not finite.

    """
    return of_stored(read_header(path), shapes)


def of_stored(stored: Mapping[str, StoredTensor], shapes: Shapes) -> State:
    """`read`, of tensors whose headers were read; all are checked before memory is taken for one. Raises BadTask."""
    found: dict[str, StoredTensor] = {}
    for name, shape in shapes.items():
        one = stored.get(name) or stored.get(f"bert.{name}")
        if one is None:
            raise BadTask(f"weights.{name}", "missing")
        if one.shape != shape or one.dtype not in DTYPES:
            raise BadTask(f"weights.{name}", f"{one.dtype[:20]} {list(one.shape)}, not {list(shape)}")
        found[name] = one
    state: dict[str, Tensor] = {}
    for name, one in found.items():
        state[name] = torch.empty(shapes[name], dtype=torch.float32)
        read_into(one, state[name])
    return state


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a float tensor are; unlike torch.isfinite it takes no memory."""
    return not tensor.numel() or all(isfinite(float(bound)) for bound in tensor.aminmax())


def digest(tensors: Mapping[str, Tensor]) -> bytes:
    """32 bytes for names, shapes and bits of tensors, in their order."""
    hashed = hashlib.sha256(canonical.encode([[name, list(t.shape)] for name, t in tensors.items()]))
    for tensor in tensors.values():
        hashed.update(view(tensor))
    return canonical.tagged_hash("nodewire/state/1", hashed.digest())


def view(tensor: Tensor) -> memoryview:
    """The tensor's bytes, not copied if it is contiguous (all supported machines are little-endian)."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data
