"""The wire's frames, without I/O: what goes over a channel, byte by byte.

Every frame starts with 16 bytes, big-endian:

    version u8 = 1 | type u8 | stream u16 | header length u32 | payload length u64

    DATA     header: msgpack [job, edge, attempt, seq, key, [[dtype, [dimension ...]] ...], meta]
             payload: the first segment of the tensors' raw bytes, one after another as the header lists them
    MORE     payload: the next segment of the DATA frame that was begun on the same stream
    CONTROL  payload: a canonical msgpack document {"t": what it is, ...}
    CREDIT   header: msgpack [job, edge, attempt, limit]: how much may have been sent on the edge in all
    PING     nothing: a heartbeat; `stream` is echoed
    PONG     nothing: its echo
    FILLER   payload: ignored; opens the congestion window

A tensor is never inside msgpack, and never in one piece above SEGMENT_BYTES, so that a heartbeat or another job's
frame does not wait behind it. Every length is checked against its cap before memory is taken for it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadFrame, BadInput, NodewireError, TooLarge, from_dict
from nodewire.protocol.encoding import canonical
from nodewire.wire.framing.headers import (
    FRAME_COST_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Buffer,
    DataHeader,
    data_header,
    pack_credit,
    pack_header,
    pack_record,
    unpack_record,
)

if TYPE_CHECKING:
    from nodewire.protocol.tensors.frame import Array

__all__ = [
    "FRAME_COST_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_HEADER_BYTES",
    "Buffer",
    "DataHeader",
    "data_header",
    "pack_header",
    "pack_record",
    "unpack_record",
]

VERSION = 1
PREFIX = struct.Struct("!BBHIQ")
MAX_DOCUMENT_BYTES = 65_536
MAX_DOCUMENT_VALUES = 2_048
"""64 KiB of empty lists would take a link 80 ms to read."""
MAX_FILLER_BYTES = 131_072
SEGMENT_BYTES = 262_144
MAX_STREAMS = 64

Document = Mapping[str, Any]

RECORD_BYTES = 16_384
"""What TLS encrypts at once."""


class Type(IntEnum):
    DATA = 1
    MORE = 2
    CONTROL = 3
    CREDIT = 4
    PING = 5
    PONG = 6
    FILLER = 7


CAPS: dict[int, tuple[int, int]] = {  # type: (header, payload), in bytes
    Type.DATA: (MAX_HEADER_BYTES, SEGMENT_BYTES),
    Type.MORE: (0, SEGMENT_BYTES),
    Type.CONTROL: (0, MAX_DOCUMENT_BYTES),
    Type.CREDIT: (MAX_HEADER_BYTES, 0),
    Type.PING: (0, 0),
    Type.PONG: (0, 0),
    Type.FILLER: (0, MAX_FILLER_BYTES),
}


def data(stream: int, packed: bytes, nbytes: int, arrays: Sequence[Array]) -> Iterator[list[Buffer]]:
    """The frame with the packed header as the buffers of one segment after another; long ones are not copied."""
    views = deque(memoryview(array.data).cast("B") for array in arrays if len(array.data))
    kind, sent = Type.DATA, 0
    while kind == Type.DATA or sent < nbytes:
        size = left = min(SEGMENT_BYTES, nbytes - sent)
        segment: list[Buffer] = [PREFIX.pack(VERSION, kind, stream, len(packed), size) + packed]
        while left:
            view = views.popleft()
            segment.append(view[:left])
            if len(view) > left:
                views.appendleft(view[left:])
            left -= len(segment[-1])
        yield _led(segment)
        sent += size
        kind, packed = Type.MORE, b""


def whole(packed: bytes, nbytes: int, arrays: Sequence[Array]) -> list[Buffer]:
    """The frame with the packed header, of one segment, while no other frame is under way."""
    head = PREFIX.pack(VERSION, Type.DATA, 0, len(packed), nbytes) + packed
    return _led([head, *[memoryview(array.data).cast("B") for array in arrays if len(array.data)]])


def _led(segment: list[Buffer]) -> list[Buffer]:
    """The segment with its header at the head of a full TLS record: one of its own costs more than a copy."""
    joined, room = [segment[0]], RECORD_BYTES - len(segment[0])
    for index, view in enumerate(segment[1:], 1):
        if len(view) > room:
            return [b"".join([*joined, view[:room]]), view[room:], *segment[index + 1 :]]
        joined.append(view)
        room -= len(view)
    return [b"".join(joined)]


def control(document: Document) -> bytes:
    """A CONTROL frame. Raises BadInput if `document` has no canonical form, TooLarge over 64 KiB."""
    packed = canonical.encode(document)
    if len(packed) > MAX_DOCUMENT_BYTES:
        raise TooLarge("document", f"{len(packed)} bytes, at most {MAX_DOCUMENT_BYTES}")
    return PREFIX.pack(VERSION, Type.CONTROL, 0, 0, len(packed)) + packed


def parse_document(packed: bytearray) -> Document:
    """What a CONTROL frame says. Raises BadFrame, TooLarge."""
    try:
        document = canonical.decode(bytes(packed), max_bytes=MAX_DOCUMENT_BYTES, max_values=MAX_DOCUMENT_VALUES)
    except TooLarge:
        raise
    except BadInput as error:
        raise BadFrame(error.field, error.reason) from error
    if not isinstance(document, dict) or not isinstance(document.get("t"), str):
        raise BadFrame("document", "not a map with a type `t`")
    return document


def values(document: Any) -> int:
    """How many a document holds, itself included."""
    count, left = 0, [document]
    while left:
        count += 1
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
    return count


def reported(document: Document) -> NodewireError:
    """The error in a document that a peer sent."""
    error = document.get("error")
    return from_dict(error if isinstance(error, dict) else {"field": "peer", "reason": "gave no reason"})


def credit(job: str, edge: str, attempt: int, limit: int) -> bytes:
    packed = pack_credit(job, edge, attempt, limit)
    return PREFIX.pack(VERSION, Type.CREDIT, 0, len(packed), 0) + packed


def ping(tag: int) -> bytes:
    return PREFIX.pack(VERSION, Type.PING, tag, 0, 0)


def pong(tag: int) -> bytes:
    return PREFIX.pack(VERSION, Type.PONG, tag, 0, 0)


def filler(size: int) -> bytes:
    return PREFIX.pack(VERSION, Type.FILLER, 0, 0, size) + bytes(size)
