"""A large document in canonical msgpack, written and read piece by piece (`nodewire.slices`).

A piece is a field, or an item of a field that is a list. The length of a list is bounded before its items are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgpack

from nodewire.errors import BadInput, TooLarge
from nodewire.protocol import canonical
from nodewire.protocol.schema import Schema
from nodewire.slices import Sliced

_HASHED_BYTES = 1_048_576


def packed(document: Schema) -> Sliced[bytes]:
    """The same bytes as `document.pack()`."""
    packer = msgpack.Packer(use_bin_type=True)
    names = _ordered(type(document))
    pieces = [packer.pack_map_header(len(names))]
    for name in names:
        value = getattr(document, name)
        pieces.append(packer.pack(name))
        if isinstance(value, tuple):
            pieces.append(packer.pack_array_header(len(value)))
            for item in value:
                pieces.append(packer.pack(_plain(item)))
                yield
        else:
            pieces.append(packer.pack(_plain(value)))
    return b"".join(pieces)


def sha256(blob: bytes) -> Sliced[str]:
    """The plain SHA-256 of a large blob, as hex digits."""
    state, view = hashlib.sha256(), memoryview(blob)
    for start in range(0, len(view), _HASHED_BYTES):
        state.update(view[start : start + _HASHED_BYTES])
        yield
    return state.hexdigest()


def read(blob: bytes, most: Mapping[str, int], *, longest: int) -> Sliced[dict[str, Any]]:
    """The document in `blob`.

    Args:
        most: the fields that are lists, with the most items that each may have.
        longest: the most items that any list or map within a piece may have.

    Raises:
        TooLarge: a list has more items than it may; the field is named.
        BadInput: not a map in canonical msgpack.
    """
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, max_array_len=longest, max_map_len=longest, max_buffer_size=max(len(blob), 1)
    )
    packer, document, before = msgpack.Packer(use_bin_type=True), dict[str, Any](), ""
    try:
        unpacker.feed(blob)
        fields = unpacker.read_map_header()
        _check(blob, 0, unpacker.tell(), packer.pack_map_header(fields))
        for number in range(fields):
            name = _piece(blob, unpacker)
            if not isinstance(name, str) or (number and name.encode() <= before.encode()):
                raise BadInput("document", "a field's name is no string, or not in canonical order")
            before = name
            if name not in most:
                document[name] = _piece(blob, unpacker)
                yield
                continue
            start, items = unpacker.tell(), unpacker.read_array_header()
            if items > most[name]:
                raise TooLarge(name, f"{items} items, at most {most[name]}")
            _check(blob, start, unpacker.tell(), packer.pack_array_header(items))
            document[name] = []
            for _ in range(items):
                document[name].append(_piece(blob, unpacker))
                yield
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadInput("document", "not msgpack, or a list in it is too long") from error
    if unpacker.tell() != len(blob):
        raise BadInput("document", "bytes follow its end")
    return document


def _piece(blob: bytes, unpacker: msgpack.Unpacker) -> Any:
    start = unpacker.tell()
    value = unpacker.unpack()
    _check(blob, start, unpacker.tell(), canonical.encode(value))
    return value


def _check(blob: bytes, start: int, end: int, expected: bytes) -> None:
    if blob[start:end] != expected:
        raise BadInput("document", "not in canonical form")


@cache
def _ordered(kind: type[Schema]) -> tuple[str, ...]:
    return tuple(sorted(kind.model_fields))


def _plain(value: Any) -> Any:
    """A part of a document with its fields in canonical order."""
    if isinstance(value, Schema):
        return {name: _plain(getattr(value, name)) for name in _ordered(type(value))}
    return [_plain(item) for item in value] if type(value) is tuple else value
