"""A plain reader of the wire's frames, to which `bench.fuzz.fuzz_wire` holds the real ones.

It follows nips/21-links.md, over whole streams and shares no code with nodewire/wire: where the two differ, one of them
is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from nodewire.protocol.job.plan import tensor_key

PREFIX = struct.Struct("!BBHIQ")
DATA, MORE, CONTROL, CREDIT, PING, PONG, FILLER = range(1, 8)
HEADERS = {DATA: 4_096, CREDIT: 4_096}
PAYLOADS = {DATA: 262_144, MORE: 262_144, CONTROL: 65_536, FILLER: 131_072}
SEGMENT = 262_144
ITEMS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1, "mxint8": 1}


@dataclass(frozen=True, slots=True)
class Read:
    """A DATA frame as a reader has it: its header's fields and its bytes."""

    job: bytes
    edge: str
    attempt: int
    seq: int
    key: bytes
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    meta: tuple[tuple[str, Any], ...]
    data: bytes

    @property
    def is_named_rightly(self) -> bool:
        return self.attempt == 0 and self.key == tensor_key(self.job.hex(), self.edge, 0, self.seq)


def size_of(dtype: str, shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    if dtype != "mxint8":
        return count * ITEMS[dtype]
    width = shape[-1] if shape else 1
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows * (-(-width // 32) + width)


class _NoFrame(Exception):
    pass


def read(stream: bytes) -> tuple[list[Any], bool]:
    """What is in a stream, in order, until something in it is no frame; whether that was so.

    DATA frames are `Read`; CONTROL is ("control", document), CREDIT ("credit", job, edge, attempt, limit), PING and
    PONG are ("ping", tag) and ("pong", tag).
    """
    found: list[Any] = []
    try:
        _read(memoryview(stream), found)
    except _NoFrame:
        return found, True
    return found, False


def is_whole(stream: bytes) -> bool:
    """Whether a stream that is valid ends where a frame does, with none under way."""
    try:
        return _read(memoryview(stream), [])
    except _NoFrame:
        return False


def _read(rest: memoryview, found: list[Any]) -> bool:
    """Whether nothing is lacking at the end."""
    under_way: dict[int, tuple[tuple[Any, ...], int, bytearray]] = {}
    while len(rest) >= PREFIX.size:
        version, kind, stream, header_bytes, payload_bytes = PREFIX.unpack_from(rest)
        _must(version == 1 and DATA <= kind <= FILLER)
        _must(header_bytes <= HEADERS.get(kind, 0) and payload_bytes <= PAYLOADS.get(kind, 0))
        rest = rest[PREFIX.size :]
        if len(rest) < header_bytes:
            return False
        header, rest = rest[:header_bytes], rest[header_bytes:]
        if kind == DATA:
            _must(stream not in under_way and len(under_way) < 64)
            fields, size = _header(header)
            under_way[stream] = (fields, size, bytearray())
        if kind in (DATA, MORE):
            _must(stream in under_way)
            _, size, done = under_way[stream]
            _must(payload_bytes == min(size - len(done), SEGMENT))
        if kind == CREDIT:
            found.append(("credit", *_credit(header)))
        if len(rest) < payload_bytes:
            return False
        payload, rest = rest[:payload_bytes], rest[payload_bytes:]
        if kind in (DATA, MORE):
            fields, size, done = under_way[stream]
            done += payload
            if len(done) == size:
                del under_way[stream]
                found.append(Read(*fields, bytes(done)))  # type: ignore[call-arg]
        elif kind == CONTROL:
            found.append(("control", _document(bytes(payload))))
        elif kind in (PING, PONG):
            found.append(("ping" if kind == PING else "pong", stream))
    return not rest and not under_way


def _must(holds: bool) -> None:
    if not holds:
        raise _NoFrame


def _fields(header: memoryview, count: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(header, raw=False, strict_map_key=True)
    except Exception as error:
        raise _NoFrame from error
    _must(isinstance(fields, list) and len(fields) == count)
    job, edge, attempt = fields[:3]
    _must(isinstance(job, bytes) and len(job) == 32 and isinstance(edge, str) and 1 <= len(edge) <= 64)
    _must(type(attempt) is int and 0 <= attempt < 2**16)
    return list(fields)


def _header(header: memoryview) -> tuple[tuple[Any, ...], int]:
    job, edge, attempt, seq, key, tensors, meta = _fields(header, 7)
    _must(isinstance(key, bytes) and len(key) == 16 and type(seq) is int and 0 <= seq < 2**53)
    _must(isinstance(tensors, list) and len(tensors) <= 64)
    for tensor in tensors:
        _must(isinstance(tensor, list) and len(tensor) == 2)
        _must(isinstance(tensor[0], str) and tensor[0] in ITEMS and isinstance(tensor[1], list))
        _must(len(tensor[1]) <= 8 and all(type(n) is int and 0 <= n < 2**40 for n in tensor[1]))
    _must(isinstance(meta, dict) and len(meta) <= 64)
    _must(all(type(name) is str and type(value) in (int, str, bytes, bool, type(None)) for name, value in meta.items()))
    size = sum(size_of(*tensor) for tensor in tensors)
    _must(size <= 256 * 2**20)
    types = tuple((dtype, tuple(shape)) for dtype, shape in tensors)
    return (job, edge, attempt, seq, key, types, tuple(meta.items())), size


def _credit(header: memoryview) -> tuple[str, str, int, int]:
    job, edge, attempt, limit = _fields(header, 4)
    _must(type(limit) is int and 0 <= limit < 2**63)
    return job.hex(), edge, attempt, limit


def _document(payload: bytes) -> dict[str, Any]:
    try:
        document = msgpack.unpackb(payload, raw=False, strict_map_key=True)
        again = msgpack.packb(in_order(document), use_bin_type=True)
    except Exception as error:
        raise _NoFrame from error
    _must(again == payload and isinstance(document, dict) and isinstance(document.get("t"), str))
    _must(_is_plain(document, 0))
    found: dict[str, Any] = document
    return found


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=lambda key: str(key).encode())}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def _is_plain(value: Any, depth: int) -> bool:
    if depth > 32:
        return False
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(item, depth + 1) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item, depth + 1) for item in value)
    return type(value) in (int, str, bytes, bool, type(None))
