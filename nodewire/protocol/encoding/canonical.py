"""Canonical bytes and tagged hashes: the same document has the same hash in every implementation.

A document is maps, lists, strings, byte strings, integers, booleans and null (no floats), written as msgpack with map
keys sorted by their UTF-8 bytes and every integer, string and container in its shortest form. A hash is
SHA-256(SHA-256(tag) || SHA-256(tag) || bytes), as in BIP-340.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack

from nodewire.errors import BadInput, TooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.core.slices import Sliced

MAX_DEPTH = 32
_SCALARS = frozenset({type(None), bool, int, str, bytes})


def encode(document: Any) -> bytes:
    """Canonical msgpack of `document`.

    Raises:
        BadInput: it holds a float, a non-string key or another type that has no canonical form.

    """
    try:
        ordered = document if type(document) in _SCALARS else _ordered(document, 0)
        return bytes(msgpack.packb(ordered, use_bin_type=True))
    except OverflowError as error:
        raise BadInput("document", "an integer is beyond 64 bits") from error


def decode(data: bytes | memoryview, *, max_bytes: int, max_values: int | None = None) -> Any:
    """The document in `data`.

    `max_values` bounds lists, maps and what is in them together: a megabyte of empty lists would else become fifty.

    Raises:
        TooLarge: longer than `max_bytes`, or of more than `max_values`.
        BadInput: not msgpack, or not its canonical form.

    """
    if len(data) > max_bytes:
        raise TooLarge("document", f"{len(data)} bytes, at most {max_bytes}")
    try:
        document = msgpack.unpackb(data, raw=False, strict_map_key=True, **_counted(max_values))
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        if "exceeds max_" in str(error):
            raise TooLarge("document", f"more than {max_values} values") from error
        raise BadInput("document", "not msgpack") from error
    if encode(document) != bytes(data):
        raise BadInput("document", "not in canonical form")
    return document


def read(
    data: bytes, *, max_bytes: int, most: Mapping[str, int] | None = None, longest: int | None = None
) -> Sliced[dict[str, Any]]:
    """The map in `data`, read in slices, a field or a list's item at a time.

    Args:
        data: a map in msgpack.
        max_bytes: the most that `data` may have.
        most: of fields that are lists, the most items that each may have. That is checked before any is read.
        longest: the most items that any list or map within a field, or within an item of these, may have.

    Raises:
        TooLarge: longer than `max_bytes`, or a list or map has more items than it may; the field is named.
        BadInput: not a map in msgpack, or not its canonical form.

    """
    if len(data) > max_bytes:
        raise TooLarge("document", f"{len(data)} bytes, at most {max_bytes}")
    longest = len(data) if longest is None else longest
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=True, max_array_len=longest, max_map_len=longest, max_buffer_size=max(len(data), 1)
    )
    packer, document, name = msgpack.Packer(use_bin_type=True), dict[str, Any](), ""
    try:
        unpacker.feed(data)
        fields = unpacker.read_map_header()
        _check(data, 0, unpacker.tell(), packer.pack_map_header(fields))
        for number in range(fields):
            before, name = name, _piece(data, unpacker)
            if not isinstance(name, str) or (number and name.encode() <= before.encode()):
                raise BadInput("document", "a field's name is no string, or not in canonical order")
            start = unpacker.tell()
            if name not in (most or {}) or not _is_list(data[start : start + 1]):
                document[name] = _piece(data, unpacker)
                yield
                continue
            items, room = unpacker.read_array_header(), (most or {})[name]
            if items > room:
                raise TooLarge(name, f"{items} items, at most {room}")
            _check(data, start, unpacker.tell(), packer.pack_array_header(items))
            document[name] = []
            for _ in range(items):
                document[name].append(_piece(data, unpacker))
                yield
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        if "exceeds max_" in str(error):
            raise TooLarge(name or "document", f"a list or map in it has more than {longest} items") from error
        raise BadInput("document", "not a map in msgpack") from error
    if unpacker.tell() != len(data):
        raise BadInput("document", "bytes follow its end")
    return document


def _is_list(first: bytes) -> bool:
    return first in (b"\xdc", b"\xdd") or b"\x90" <= first <= b"\x9f"


def _piece(data: bytes, unpacker: msgpack.Unpacker) -> Any:
    start = unpacker.tell()
    value = unpacker.unpack()
    _check(data, start, unpacker.tell(), encode(value))
    return value


def _check(data: bytes, start: int, end: int, expected: bytes) -> None:
    if data[start:end] != expected:
        raise BadInput("document", "not in canonical form")


def _counted(max_values: int | None) -> dict[str, Any]:
    """Options of msgpack under which a document of more values than that is given up while it is read."""
    if max_values is None:
        return {}
    left = max_values

    def counted(container: Any) -> Any:
        nonlocal left
        left -= 1 + len(container)
        if left < 0:
            raise TooLarge("document", f"more than {max_values} values")
        return container

    return {
        "list_hook": counted,
        "object_hook": counted,
        "max_array_len": max_values,
        "max_map_len": max_values,
    }


def tagged_hash(tag: str, data: bytes) -> bytes:
    """The BIP-340 style tagged SHA-256 of `data`, 32 bytes."""
    return hashlib.sha256(_prefix(tag) + data).digest()


def tagged_state(tag: str, data: bytes) -> hashlib._Hash:
    """The tagged hash of what begins with `data`, to go on with."""
    return hashlib.sha256(_prefix(tag) + data)


def digest(tag: str, document: Any) -> str:
    """The tagged hash of a document's canonical bytes, as 64 hex digits."""
    return tagged_hash(tag, encode(document)).hex()


@lru_cache(maxsize=64)
def _prefix(tag: str) -> bytes:
    return hashlib.sha256(tag.encode()).digest() * 2


def _ordered(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TooLarge("document", f"nested more than {MAX_DEPTH} deep")
    if type(value) in _SCALARS or isinstance(value, bool | int | str | bytes):  # the first is quicker
        return value
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BadInput("document", "a map key is not a string")
        return {key: _ordered(value[key], depth + 1) for key in sorted(value, key=str.encode)}
    if isinstance(value, list | tuple):
        return [_ordered(item, depth + 1) for item in value]
    raise BadInput("document", f"{type(value).__name__} has no canonical form")
