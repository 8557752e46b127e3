"""The header of a GGUF file: a bounded, strict reader. Of tensors it gives types and places, and reads none.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: magic, version, two counts, metadata by key, the tensors'
names, shapes, types and offsets, padding, data; all little-endian. The `gguf` library's own reader takes every length
as the file gives it, and makes Python objects of each of an array's elements, so it is not used on a stranger's file.
Nothing is mapped into memory: a mapped file that another process cuts short ends this one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from nodewire.errors import BadTask, TooLarge, Unsupported
from nodewire.gguf.types import OTHERS, TYPES, Type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 * 1_048_576
MAX_KEYS, MAX_TENSORS = 4_096, 65_536
MAX_NAME_BYTES = 256
"""Of a key or a tensor's name."""
MAX_TEXT_BYTES = 4 * 1_048_576
"""Of a text outside an array, such as a chat template."""
MAX_TOKEN_BYTES = 65_536
"""Of a text in an array."""
MAX_ARRAY = MAX_TEXTS = 2**21
"""Elements of an array, and texts in all arrays together."""
MAX_DIMENSIONS, MAX_NUMBERS = 4, 2**48
MAX_ALIGNMENT = 65_536
_ALIGNMENT = 32
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a file: `shape` has rows last, `start` is the byte that its data begin at."""

    path: Path
    type: Type
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count // self.type.size * self.type.nbytes


class Header(NamedTuple):
    """Metadata are whole numbers, floats, booleans and texts; arrays are lists of texts, or of numpy."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]


def read(path: Path) -> Header:
    """The header of the file at `path`, checked against the file's size.

    Raises:
        BadTask: it is not a GGUF file, or its parts contradict each other; the field is named.
        Unsupported: a version, or a tensor's type, that is not read.
        TooLarge: a count or a length above its cap; nothing was allocated for it.
        OSError: the file cannot be read.

    """
    size = path.stat().st_size
    with path.open("rb") as file:
        return _Reader(file, path, size).header()


class _Reader:
    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file, self._path, self._size = file, path, size
        self._at = self._texts = 0

    def header(self) -> Header:
        magic = self._file.read(4)
        if magic != MAGIC:
            raise BadTask("gguf.magic", f"{self._path.name[:80]} begins with {magic!r}: it is no GGUF file")
        self._at = 4
        version = self._number("version", "<I")
        if version not in VERSIONS:
            if version in (number << 24 for number in VERSIONS):
                raise Unsupported(
                    "gguf.version", "the file is big-endian: convert the model on a little-endian machine"
                )
            raise Unsupported("gguf.version", f"{version} is not 2 or 3: convert the model with a newer llama.cpp")
        tensors = self._count("tensor_count", MAX_TENSORS)
        keys = self._count("metadata_kv_count", MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._text("a key", MAX_NAME_BYTES)
            if key in metadata:
                raise BadTask(f"gguf.{key}", "stands twice in the metadata")
            metadata[key] = self._value(key)
        rows = [self._tensor(number) for number in range(tensors)]
        return Header(metadata, self._placed(rows, _alignment(metadata)))

    def _take(self, count: int, what: str) -> bytes:
        """So many bytes, of which there are as many left."""
        if count > self._size - self._at:
            raise BadTask(f"gguf.{what}", f"cut short: the file ends at byte {self._size}")
        if self._at + count > MAX_HEADER_BYTES:
            raise TooLarge("gguf", f"a header of over {MAX_HEADER_BYTES} bytes")
        data = self._file.read(count)
        if len(data) != count:
            raise BadTask(f"gguf.{what}", "cut short: the file has become shorter")
        self._at += count
        return data

    def _number(self, what: str, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form), what))[0])

    def _count(self, what: str, most: int) -> int:
        count = self._number(what, "<Q")
        if count > most:
            raise TooLarge(f"gguf.{what}", f"{count}, at most {most}")
        return count

    def _text(self, what: str, most: int) -> str:
        length = self._number(what, "<Q")
        if length > most:
            raise TooLarge(f"gguf.{what}", f"a text of {length} bytes, at most {most}")
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError:
            raise BadTask(f"gguf.{what}", "a text that is not UTF-8") from None

    def _value(self, key: str) -> Any:
        kind = self._number(key, "<I")
        if kind == _ARRAY:
            return self._array(key)
        if kind == _TEXT:
            return self._text(key, MAX_TEXT_BYTES)
        if kind == _BOOL:
            return bool(_booleans(key, self._take(1, key))[0])
        if kind not in _NUMBERS:
            raise BadTask(f"gguf.{key}", f"a value of type {kind}, which GGUF has not")
        form = np.dtype(_NUMBERS[kind])
        value = np.frombuffer(self._take(form.itemsize, key), form)[0]
        if form.kind != "f":
            return value.item()
        if not np.isfinite(value):
            raise BadTask(f"gguf.{key}", "is not finite")
        return float(str(value))  # of the fewest digits: what was 1e-05 before it was cut to four bytes is that again

    def _array(self, key: str) -> Any:
        kind, count = self._number(key, "<I"), self._count(key, MAX_ARRAY)
        if kind == _TEXT:
            self._texts += count
            if self._texts > MAX_TEXTS:
                raise TooLarge(f"gguf.{key}", f"over {MAX_TEXTS} texts in the file")
            return [self._text(key, MAX_TOKEN_BYTES) for _ in range(count)]
        if kind == _BOOL:
            return _booleans(key, self._take(count, key))
        if kind not in _NUMBERS:
            raise BadTask(f"gguf.{key}", f"an array of type {kind}, which is not read")
        form = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(count * form.itemsize, key), form)

    def _tensor(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape with rows last, type, offset."""
        name = self._text(f"tensor {number}", MAX_NAME_BYTES)
        at = f"tensor {name[:80]}"
        dimensions = self._number(at, "<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise BadTask(f"gguf.{at}", f"of {dimensions} dimensions, which may be 1 to {MAX_DIMENSIONS}")
        shape = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions, at))
        if min(shape) < 1:
            raise BadTask(f"gguf.{at}", "of no numbers: a dimension is 0")
        if prod(shape) > MAX_NUMBERS:
            raise TooLarge(f"gguf.{at}", f"of shape {list(shape)}, which are over 2^48 numbers")
        kind, offset = self._number(at, "<I"), self._number(at, "<Q")
        return name, tuple(reversed(shape)), kind, offset

    def _placed(self, rows: list[tuple[str, tuple[int, ...], int, int]], alignment: int) -> dict[str, TensorEntry]:
        first = -(-self._at // alignment) * alignment
        found: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in rows:
            at = f"gguf.tensor {name[:80]}"
            if name in found:
                raise BadTask(at, "stands twice")
            type_ = TYPES.get(kind)
            if type_ is None:
                said = OTHERS.get(kind, f"of number {kind}")
                known = ", ".join(one.name for one in TYPES.values())
                raise Unsupported(
                    at, f"type {said} is not read, only {known}: take a file of the model in one of these"
                )
            if shape[-1] % type_.size:
                raise BadTask(at, f"rows of {shape[-1]} numbers, which are no whole blocks of {type_.name}")
            if offset % alignment:
                raise BadTask(at, f"misaligned: begins at byte {offset} of the data, not at a multiple of {alignment}")
            found[name] = placed = TensorEntry(self._path, type_, shape, first + offset)
            if placed.start + placed.nbytes > self._size:
                raise BadTask(at, f"cut short: ends at byte {placed.start + placed.nbytes}, the file at {self._size}")
        end, before = first, ""
        for name, placed in sorted(found.items(), key=lambda one: one[1].start):
            if placed.start < end:
                raise BadTask(f"gguf.tensor {name[:80]}", f"overlaps {before[:80]}")
            end, before = placed.start + placed.nbytes, name
        return found


def _alignment(metadata: Mapping[str, Any]) -> int:
    said = metadata.get("general.alignment", _ALIGNMENT)
    if type(said) is not int or not 0 < said <= MAX_ALIGNMENT or said & (said - 1):
        raise BadTask("gguf.general.alignment", f"{str(said)[:40]} is no power of two up to {MAX_ALIGNMENT}")
    return said


def _booleans(key: str, data: bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if data.strip(b"\0\1"):
        raise BadTask(f"gguf.{key}", "neither true nor false")
    return np.frombuffer(data, np.bool_)
