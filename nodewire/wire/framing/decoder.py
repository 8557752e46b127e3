"""The reading side of the wire's frames, without I/O: bytes in, calls on a receiver out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from nodewire.errors import BadFrame, BadVersion, TooLarge
from nodewire.net.rate_limits import VALUE_BYTES, stray_bytes
from nodewire.wire.framing.frames import (
    CAPS,
    MAX_STREAMS,
    PREFIX,
    SEGMENT_BYTES,
    VERSION,
    Document,
    Type,
    parse_document,
    values,
)
from nodewire.wire.framing.headers import DataHeader, unpack_credit, unpack_header

_SEGMENTS = (Type.DATA, Type.MORE)  # other frames under way may have the same number
_STAGING_BYTES = 12_288  # holds any prefix and header; what is in it is read in one go


class FrameMemory(NamedTuple):
    """Where the tensors of a frame go."""

    memory: memoryview | None
    """Of as many bytes as the header says; None lets them pass by."""
    is_expected: bool
    """A job's edge here has admitted the frame, and its window has paid for it."""


class Receiver(Protocol):
    """What a decoder calls. Any method may raise a NodewireError, which ends the channel."""

    def stray(self, nbytes: int) -> None:
        """A frame, or a segment of one, comes that no job expects; its price (`rate_limits.stray_bytes`)."""

    def data_begins(self, header: DataHeader) -> FrameMemory: ...

    def data_ends(self, header: DataHeader, buffer: memoryview) -> None: ...

    def control(self, document: Document) -> None: ...

    def credit(self, job: str, edge: str, attempt: int, limit: int) -> None: ...

    def ping(self, tag: int) -> None: ...

    def pong(self, tag: int) -> None: ...


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
            is_under_way = self._prefix is not None and self._prefix[0] in _SEGMENTS and self._prefix[1] == stream
            if self._target is not None and is_under_way:
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
            if not self._end:
                return
        else:
            self._end += n
        while self._start < self._end and self._step():
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
            staged -= PREFIX.size
        kind, stream, header_bytes, payload_bytes = self._prefix
        if self._target is None and not self._skip:
            if staged < header_bytes:
                return False
            header = self._staging[self._start : self._start + header_bytes]
            self._start += header_bytes
            self._begin(kind, stream, header, payload_bytes)
            return True
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
        if kind not in CAPS:
            raise BadFrame("type", f"{kind} is unknown")
        max_header, max_payload = CAPS[kind]
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
                fields = unpack_header(header)
                if payload_bytes != min(fields.nbytes, SEGMENT_BYTES):
                    raise BadFrame("payload", f"{payload_bytes} bytes are not the first segment of {fields.nbytes}")
                landing = self._receiver.data_begins(fields)
                if not landing.is_expected:
                    self._receiver.stray(stray_bytes(len(header), payload_bytes))
                self._streams[stream] = _Assembly(fields, landing.memory, landing.is_expected)
                self._expect(kind, stream, payload_bytes)
            case Type.MORE:
                assembly = self._streams.get(stream)
                if assembly is None:
                    raise BadFrame("stream", f"no frame was begun on {stream}")
                if payload_bytes != min(assembly.header.nbytes - assembly.filled, SEGMENT_BYTES):
                    raise BadFrame("payload", f"{payload_bytes} bytes are not the next segment")
                if not assembly.is_expected:
                    self._receiver.stray(stray_bytes(0, payload_bytes))
                self._expect(kind, stream, payload_bytes)
            case _:
                self._begin_signal(kind, stream, header, payload_bytes)

    def _begin_signal(self, kind: int, stream: int, header: memoryview, payload_bytes: int) -> None:
        """What carries no tensors: documents, credit, filler, pings and pongs."""
        match kind:
            case Type.CONTROL:
                self._receiver.stray(stray_bytes(payload_bytes, 0))
                self._document = bytearray(payload_bytes)
                self._target = memoryview(self._document)
                if not payload_bytes:
                    self._finish(kind, stream)
            case Type.CREDIT:
                self._receiver.stray(stray_bytes(len(header), 0))
                job, edge, attempt, limit = unpack_credit(header)
                self._prefix = None
                self._receiver.credit(job, edge, attempt, limit)
            case Type.FILLER:
                self._receiver.stray(stray_bytes(0, payload_bytes))
                self._skip = payload_bytes
                if not payload_bytes:
                    self._prefix = None
            case _:
                self._receiver.stray(stray_bytes(0, 0))
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
            self._target = assembly.memory[assembly.filled : end]
        assembly.filled = end

    def _filled(self, n: int) -> None:
        assert self._target is not None
        assert self._prefix is not None
        if n < len(self._target):
            self._target = self._target[n:]
        else:
            self._finish(self._prefix[0], self._prefix[1])

    def _finish(self, kind: int, stream: int) -> None:
        """A payload is complete."""
        self._prefix = self._target = None
        if kind == Type.CONTROL:
            document, self._document = self._document, bytearray()
            parsed = parse_document(document)
            self._receiver.stray(VALUE_BYTES * values(parsed))
            self._receiver.control(parsed)
        elif kind in _SEGMENTS:
            assembly = self._streams[stream]
            if assembly.filled >= assembly.header.nbytes:
                del self._streams[stream]
                if assembly.memory is not None:
                    self._receiver.data_ends(assembly.header, assembly.memory)


@dataclass(slots=True)
class _Assembly:
    """A DATA frame under way; `filled` bytes of it have come or are announced."""

    header: DataHeader
    memory: memoryview | None
    is_expected: bool
    filled: int = 0
