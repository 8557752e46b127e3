"""A large document in canonical msgpack, written and hashed piece by piece (`nodewire.core.slices`).

A piece is a field, or an item of a field that is a list. `canonical.read` reads such a document so.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

import msgpack

from nodewire.protocol.encoding.schema import Schema

if TYPE_CHECKING:
    from nodewire.core.slices import Sliced

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


@cache
def _ordered(kind: type[Schema]) -> tuple[str, ...]:
    return tuple(sorted(kind.model_fields))


def _plain(value: Any) -> Any:
    """A part of a document with its fields in canonical order."""
    if isinstance(value, Schema):
        return {name: _plain(getattr(value, name)) for name in _ordered(type(value))}
    return [_plain(item) for item in value] if type(value) is tuple else value
