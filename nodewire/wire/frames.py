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
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import msgpack

from nodewire.errors import BadFrame, BadInput, BadVersion, NodewireError, TooLarge, from_dict
from nodewire.protocol import canonical
from nodewire.protocol.frame import ITEM_BYTES, MAX_RANK, MAX_TENSORS, Array, Meta, bytes_of

VERSION = 1
PREFIX = struct.Struct("!BBHIQ")
MAX_HEADER_BYTES = 4_096
MAX_DOCUMENT_BYTES = 65_536
MAX_FRAME_BYTES = 256 * 2**20
MAX_FILLER_BYTES = 131_072
SEGMENT_BYTES = 262_144
MAX_STREAMS = 64
FRAME_COST_BYTES = 1_024
"""What a frame counts against a window besides its tensors, so that empty ones are not free."""

Buffer = bytes | bytearray | memoryview
Document = Mapping[str, Any]

_STAGING_BYTES = 32_768  # holds any prefix and header, and two TLS records
_MAX_META = 64
_SCALARS = (int, str, bytes, bool, type(None))
_JOINED_BYTES = 32_768  # up to here one copy costs less than another TLS record
_LIMITS: dict[str, int | bool] = {
    "raw": False,
    "strict_map_key": True,
    "max_str_len": MAX_HEADER_BYTES,
    "max_bin_len": MAX_HEADER_BYTES,
    "max_array_len": MAX_TENSORS,
    "max_map_len": _MAX_META,
    "max_ext_len": 0,
}


class Type(IntEnum):
    DATA = 1
    MORE = 2
    CONTROL = 3
    CREDIT = 4
    PING = 5
    PONG = 6
    FILLER = 7


_CAPS: dict[int, tuple[int, int]] = {  # type: (header, payload), in bytes
    Type.DATA: (MAX_HEADER_BYTES, SEGMENT_BYTES),
    Type.MORE: (0, SEGMENT_BYTES),
    Type.CONTROL: (0, MAX_DOCUMENT_BYTES),
    Type.CREDIT: (MAX_HEADER_BYTES, 0),
    Type.PING: (0, 0),
    Type.PONG: (0, 0),
    Type.FILLER: (0, MAX_FILLER_BYTES),
}


@dataclass(frozen=True, slots=True)
class DataHeader:
    """What a DATA frame says of itself; `job` is the request's event id, `key` what plan.tensor_key names it."""

    job: str
    edge: str
    attempt: int
    seq: int
    key: bytes
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each."""
    meta: Meta
    nbytes: int
    """Of all tensors together."""

    @property
    def cost(self) -> int:
        """What the frame takes from its edge's window, in bytes."""
        return self.nbytes + FRAME_COST_BYTES

    def arrays(self, buffer: memoryview) -> tuple[Array, ...]:
        """The tensors in `buffer`, not copied."""
        found, start = [], 0
        for dtype, shape in self.tensors:
            end = start + bytes_of(dtype, shape)
            found.append(Array(dtype, shape, buffer[start:end]))
            start = end
        return tuple(found)


class Receiver(Protocol):
    """What a decoder calls. Any method may raise a NodewireError, which ends the channel."""

    def data_begins(self, header: DataHeader) -> bytearray | None:
        """Memory of header.nbytes for the tensors, or None to let them pass by."""

    def data_ends(self, header: DataHeader, buffer: bytearray) -> None: ...

    def control(self, document: Document) -> None: ...

    def credit(self, job: str, edge: str, attempt: int, limit: int) -> None: ...

    def ping(self, tag: int) -> None: ...

    def pong(self, tag: int) -> None: ...


def data_header(
    job: str, edge: str, attempt: int, seq: int, key: bytes, arrays: Sequence[Array], meta: Meta, max_bytes: int
) -> DataHeader:
    """The header of a frame that is to be sent.

    Raises:
        BadFrame, TooLarge: a tensor does not agree with itself, or all are over `max_bytes`.
    """
    if len(arrays) > MAX_TENSORS:
        raise TooLarge("tensors", f"{len(arrays)}, at most {MAX_TENSORS}")
    for array in arrays:
        array.check(max_bytes)
    tensors = tuple((array.dtype, tuple(array.shape)) for array in arrays)
    header = DataHeader(job, edge, attempt, seq, key, tensors, meta, _sum(tensors))
    if header.nbytes > max_bytes:
        raise TooLarge("frame", f"{header.nbytes} bytes, at most {max_bytes}")
    return header


def pack_header(header: DataHeader) -> bytes:
    """The header's bytes.

    Raises:
        BadFrame, TooLarge: it is over 4 KiB, or holds what msgpack or the receiver would refuse.
    """
    meta = dict(header.meta)
    job = bytes.fromhex(header.job)
    # Our own mistakes are found here, not by the peer at the cost of the job.
    _check_place(job, header.edge, header.attempt)
    _check_meta(meta)
    return _pack([job, header.edge, header.attempt, header.seq, header.key, header.tensors, meta])


def pack_record(attempt: int, seq: int, arrays: Sequence[Array], meta: Meta) -> bytes:
    """What a frame says besides its edge, for where frames are kept. Raises BadFrame, TooLarge over 4 KiB."""
    return _pack([attempt, seq, [(array.dtype, array.shape) for array in arrays], dict(meta)])


def unpack_record(packed: Buffer) -> DataHeader:
    """The header in a record, without job, edge and key. Raises BadFrame, TooLarge: nothing in it is believed."""
    attempt, seq, tensors, meta = _unpack(packed, 4)
    if type(attempt) is not int or not 0 <= attempt < 2**16:
        raise BadFrame("attempt", "not a small count")
    return _header("", "", attempt, seq, b"", tensors, meta)


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
        yield [b"".join(segment)] if size <= _JOINED_BYTES else segment
        sent += size
        kind, packed = Type.MORE, b""


def control(document: Document) -> bytes:
    """A CONTROL frame. Raises BadInput if `document` has no canonical form, TooLarge over 64 KiB."""
    packed = canonical.encode(document)
    if len(packed) > MAX_DOCUMENT_BYTES:
        raise TooLarge("document", f"{len(packed)} bytes, at most {MAX_DOCUMENT_BYTES}")
    return PREFIX.pack(VERSION, Type.CONTROL, 0, 0, len(packed)) + packed


def reported(document: Document) -> NodewireError:
    """The error in a document that a peer sent."""
    error = document.get("error")
    return from_dict(error if isinstance(error, dict) else {"field": "peer", "reason": "gave no reason"})


def credit(job: str, edge: str, attempt: int, limit: int) -> bytes:
    packed = _pack([bytes.fromhex(job), edge, attempt, limit])
    return PREFIX.pack(VERSION, Type.CREDIT, 0, len(packed), 0) + packed


def ping(tag: int) -> bytes:
    return PREFIX.pack(VERSION, Type.PING, tag, 0, 0)


def pong(tag: int) -> bytes:
    return PREFIX.pack(VERSION, Type.PONG, tag, 0, 0)


def filler(size: int) -> bytes:
    return PREFIX.pack(VERSION, Type.FILLER, 0, 0, size) + bytes(size)


class Decoder:
    """Bytes in, calls on a `Receiver` out: fill `get_buffer()`, then say how much with `buffer_updated(n)`.

    The part of a tensor that comes after its header's read lands in its own memory at once. `budget_bytes` limits all
    that may ever come, until `unlimited()`.
    """

    def __init__(self, receiver: Receiver, budget_bytes: int | None = None) -> None:
        self._receiver = receiver
        self._budget = budget_bytes
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0
        self._prefix: tuple[int, int, int, int] | None = None  # type, stream, header and payload length
        self._target: memoryview | None = None  # what is left of the payload's memory
        self._skip = 0  # payload bytes that nobody wants
        self._document = bytearray()
        self._streams: dict[int, _Assembly] = {}

    def unlimited(self) -> None:
        self._budget = None

    def discard(self, job: str) -> None:
        """Free the memory of the job's frames under way; what is to come of them passes by."""
        for stream, assembly in self._streams.items():
            if assembly.header.job != job:
                continue
            assembly.memory = None
            if self._target is not None and self._prefix is not None and self._prefix[1] == stream:
                self._skip, self._target = len(self._target), None

    def get_buffer(self) -> memoryview:
        if self._target is not None:
            return self._target
        free = self._staging[self._end :]
        return free if self._budget is None else free[: self._budget + 1]

    def buffer_updated(self, n: int) -> None:
        """Raises BadFrame, BadVersion or TooLarge if what came is not a frame, and what the receiver raises."""
        if self._budget is not None:
            self._budget -= n
            if self._budget < 0:
                raise TooLarge("channel", "more bytes than an unproven peer may send")
        if self._target is not None:
            self._filled(n)
        else:
            self._end += n
        while self._step():
            pass
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._staging[:rest] = bytes(self._staging[self._start : self._end])
            self._start, self._end = 0, rest

    def _step(self) -> bool:
        """Take one part of what is staged; whether there may be more to take."""
        staged = self._end - self._start
        if self._prefix is None:
            if staged < PREFIX.size:
                return False
            self._prefix = self._check(*PREFIX.unpack_from(self._staging, self._start))
            self._start += PREFIX.size
            return True
        kind, stream, header_bytes, payload_bytes = self._prefix
        if self._target is None and not self._skip:
            if staged < header_bytes:
                return False
            header = self._staging[self._start : self._start + header_bytes]
            self._start += header_bytes
            self._begin(kind, stream, header, payload_bytes)
            return True
        if not staged:
            return False
        if self._skip:
            taken = min(staged, self._skip)
            self._skip -= taken
            self._start += taken
            if not self._skip:
                self._finish(kind, stream)
            return True
        assert self._target is not None
        taken = min(staged, len(self._target))
        self._target[:taken] = self._staging[self._start : self._start + taken]
        self._start += taken
        self._filled(taken)
        return True

    def _check(
        self, version: int, kind: int, stream: int, header_bytes: int, payload_bytes: int
    ) -> tuple[int, int, int, int]:
        if version != VERSION:
            raise BadVersion("frame", f"{version}; this software speaks {VERSION}")
        if kind not in _CAPS:
            raise BadFrame("type", f"{kind} is unknown")
        max_header, max_payload = _CAPS[kind]
        if header_bytes > max_header:
            raise TooLarge("header", f"{header_bytes} bytes, at most {max_header}")
        if payload_bytes > max_payload:
            raise TooLarge("payload", f"{payload_bytes} bytes, at most {max_payload}")
        if self._budget is not None and payload_bytes > self._budget + self._end - self._start - PREFIX.size:
            raise TooLarge("payload", "more bytes than an unproven peer may send")
        return kind, stream, header_bytes, payload_bytes

    def _begin(self, kind: int, stream: int, header: memoryview, payload_bytes: int) -> None:
        match kind:
            case Type.DATA:
                if stream in self._streams:
                    raise BadFrame("stream", f"{stream} is still busy with another frame")
                if len(self._streams) == MAX_STREAMS:
                    raise TooLarge("streams", f"at most {MAX_STREAMS} frames may be under way")
                fields = _parse_data(header)
                if payload_bytes != min(fields.nbytes, SEGMENT_BYTES):
                    raise BadFrame("payload", f"{payload_bytes} bytes are not the first segment of {fields.nbytes}")
                memory = self._receiver.data_begins(fields)
                self._streams[stream] = _Assembly(fields, memory)
                self._expect(kind, stream, payload_bytes)
            case Type.MORE:
                assembly = self._streams.get(stream)
                if assembly is None:
                    raise BadFrame("stream", f"no frame was begun on {stream}")
                if payload_bytes != min(assembly.header.nbytes - assembly.filled, SEGMENT_BYTES):
                    raise BadFrame("payload", f"{payload_bytes} bytes are not the next segment")
                self._expect(kind, stream, payload_bytes)
            case Type.CONTROL:
                self._document = bytearray(payload_bytes)
                self._target = memoryview(self._document)
                if not payload_bytes:
                    self._finish(kind, stream)
            case Type.CREDIT:
                job, edge, attempt, limit = _parse_credit(header)
                self._prefix = None
                self._receiver.credit(job, edge, attempt, limit)
            case Type.FILLER:
                self._skip = payload_bytes
                if not payload_bytes:
                    self._prefix = None
            case _:
                self._prefix = None
                self._receiver.ping(stream) if kind == Type.PING else self._receiver.pong(stream)

    def _expect(self, kind: int, stream: int, payload_bytes: int) -> None:
        assembly = self._streams[stream]
        end = assembly.filled + payload_bytes
        if not payload_bytes:
            self._finish(kind, stream)
        elif assembly.memory is None:
            self._skip = payload_bytes
        else:
            self._target = memoryview(assembly.memory)[assembly.filled : end]
        assembly.filled = end

    def _filled(self, n: int) -> None:
        assert self._target is not None
        assert self._prefix is not None
        self._target = self._target[n:]
        if not self._target:
            self._finish(*self._prefix[:2])

    def _finish(self, kind: int, stream: int) -> None:
        """A payload is complete."""
        self._prefix = self._target = None
        if kind == Type.CONTROL:
            document, self._document = self._document, bytearray()
            self._receiver.control(_parse_document(document))
        elif kind in (Type.DATA, Type.MORE):
            assembly = self._streams[stream]
            if assembly.filled >= assembly.header.nbytes:
                del self._streams[stream]
                if assembly.memory is not None:
                    self._receiver.data_ends(assembly.header, assembly.memory)


@dataclass(slots=True)
class _Assembly:
    """A DATA frame under way; `filled` bytes of it have come or are announced."""

    header: DataHeader
    memory: bytearray | None
    filled: int = 0


def _pack(fields: Sequence[Any]) -> bytes:
    try:
        packed = bytes(msgpack.packb(fields, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrame("header", "holds what msgpack cannot") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise TooLarge("header", f"{len(packed)} bytes, at most {MAX_HEADER_BYTES}")
    return packed


def _unpack(packed: Buffer, count: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(packed, **_LIMITS)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadFrame("header", "not msgpack within its limits") from error
    if not isinstance(fields, list) or len(fields) != count:
        raise BadFrame("header", f"not an array of {count} fields")
    return fields


def _parse_data(packed: Buffer) -> DataHeader:
    job, edge, attempt, seq, key, tensors, meta = _unpack(packed, 7)
    _check_place(job, edge, attempt)
    if not isinstance(key, bytes) or len(key) != 16:
        raise BadFrame("key", "not 16 bytes")
    return _header(job.hex(), edge, attempt, seq, key, tensors, meta)


def _header(job: str, edge: str, attempt: int, seq: object, key: bytes, tensors: object, meta: Any) -> DataHeader:
    if type(seq) is not int or not 0 <= seq < 2**53:
        raise BadFrame("seq", "not a count")
    if not isinstance(tensors, list) or len(tensors) > MAX_TENSORS:
        raise BadFrame("tensors", "not an array")
    found = tuple(_parse_tensor(item) for item in tensors)
    _check_meta(meta)
    nbytes = _sum(found)
    if nbytes > MAX_FRAME_BYTES:
        raise TooLarge("frame", f"{nbytes} bytes, at most {MAX_FRAME_BYTES}")
    return DataHeader(job, edge, attempt, seq, key, found, meta, nbytes)


def _check_meta(meta: object) -> None:
    if not isinstance(meta, dict) or len(meta) > _MAX_META:
        raise BadFrame("meta", f"not a map of at most {_MAX_META} scalars")
    for name, value in meta.items():
        if type(name) is not str or type(value) not in _SCALARS:
            raise BadFrame("meta", "not a map of strings to scalars")


def _parse_tensor(item: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(item, list) or len(item) != 2:
        raise BadFrame("tensors", "an item is not [dtype, shape]")
    dtype, shape = item
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadFrame("dtype", f"{str(dtype)[:20]!r} is not one of {', '.join(ITEM_BYTES)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise BadFrame("shape", f"not an array of at most {MAX_RANK} dimensions")
    if any(type(n) is not int or not 0 <= n < 2**40 for n in shape):
        raise BadFrame("shape", "a dimension is out of range")
    return dtype, tuple(shape)


def _parse_credit(packed: Buffer) -> tuple[str, str, int, int]:
    job, edge, attempt, limit = _unpack(packed, 4)
    _check_place(job, edge, attempt)
    if type(limit) is not int or not 0 <= limit < 2**63:
        raise BadFrame("limit", "not a count of bytes")
    return job.hex(), edge, attempt, limit


def _check_place(job: object, edge: object, attempt: object) -> None:
    if not isinstance(job, bytes) or len(job) != 32:
        raise BadFrame("job", "not 32 bytes")
    if not isinstance(edge, str) or not 0 < len(edge) <= 64:
        raise BadFrame("edge", "not a name")
    if type(attempt) is not int or not 0 <= attempt < 2**16:
        raise BadFrame("attempt", "not a small count")


def _parse_document(packed: bytearray) -> Document:
    try:
        document = canonical.decode(bytes(packed), max_bytes=MAX_DOCUMENT_BYTES)
    except TooLarge:
        raise
    except BadInput as error:
        raise BadFrame(error.field, error.reason) from error
    if not isinstance(document, dict) or not isinstance(document.get("t"), str):
        raise BadFrame("document", "not a map with a type `t`")
    return document


def _sum(tensors: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    return sum(bytes_of(dtype, shape) for dtype, shape in tensors)
