"""Frames kept on disk: what a neighbour that comes back, or a verifier, is sent again.

    directory/<request>/<edge>     records, appended in order of seq
    directory/<request>/_sent      what producers signed of the frames that they sent here: a statement's JSON a line
    directory/<request>/until      when the job may be deleted, unix seconds in decimal

    record   u32 header length | u32 CRC-32 of the header | u64 payload length | header | payload
    header   msgpack [attempt, seq, [[dtype, [dimension ...]] ...], meta]
    cut      a record of 0xffffffff and zeros: here the edge exceeded its cap, and nothing follows

Everything is big-endian; the payload is the tensors' raw bytes. A write is one system call into the page cache, never
an fsync: a daemon that dies loses nothing, a machine that dies may lose the tail, and a tail that is no whole record
ends the edge. Payloads carry no checksum, for what they must hash to was committed elsewhere.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import struct
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, Busy
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.wire.framing import frames
from nodewire.wire.framing.frames import MAX_FRAME_BYTES, MAX_HEADER_BYTES, DataHeader

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

MAX_JOB_BYTES = 2 * 2**30
ORPHAN_S = 3_600
"""How long after its last frame a job is kept of which a restarted daemon does not know until when."""
HEADER_BYTES = 256
"""About what stands before a frame's payload."""

_PREFIX = struct.Struct("!IIQ")
_CUT_LENGTH = 0xFFFFFFFF
_CUT = _PREFIX.pack(_CUT_LENGTH, 0, 0)
_UNTIL = "until"
_SENT = "_sent"  # no edge's name
_MAX_OPEN_FILES = 128
_HEAD_BYTES = 512  # holds the prefix and nearly every header, in one read
_REQUEST = re.compile(r"[0-9a-f]{64}")
_EDGE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

_log = logging.getLogger("nodewire.wire")


class Spool:
    """Not shared between processes. `max_bytes` in all, `max_job_bytes` a job; what is over is not kept."""

    def __init__(self, directory: Path, max_bytes: int, max_job_bytes: int = MAX_JOB_BYTES) -> None:
        """Goes on with what an earlier process left in `directory`. Raises OSError if that cannot be used."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_job_bytes = max_job_bytes
        self._jobs: dict[str, _Job] = {}
        self._open: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Descriptors of the files written last."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            if _REQUEST.fullmatch(path.name) and path.is_dir():
                self._jobs[path.name] = _found(path)
        self.bytes = sum(job.bytes for job in self._jobs.values())
        """On disk, all jobs together."""
        self._room: dict[str, int] = {}
        """By job under way, what it may still write of the room that was reserved for it."""
        self._reserved = 0
        """All of that."""

    def reserve(self, request: str, nbytes: int) -> None:
        """Keep room for what a job has yet to write, until `keep_until` or `remove`. Raises Busy: there is less."""
        free = min(self._max_job_bytes, self._max_bytes - self.bytes - self._reserved)
        if nbytes > free:
            raise Busy("spool", f"the job may need {nbytes} bytes of it, {max(0, free)} are free")
        self._return(request)
        self._room[request] = nbytes
        self._reserved += nbytes

    def write(self, request: str, edge: str, attempt: int, frame: Frame[Array]) -> None:
        """Keep the next frame of an edge. One that is here already stays as it was; after a gap nothing is kept.

        Raises:
            BadInput, BadFrame, TooLarge: a name or the frame is malformed. A full disk or cap is no error: `is_whole`
                says so afterwards.

        """
        kept = self._edge(request, edge)
        if kept.cut or frame.seq < kept.next_seq:
            return
        header = frames.pack_record(attempt, frame.seq, frame.tensors, frame.meta)
        payload = [array.data for array in frame.tensors]
        size = sum(map(len, payload))
        total = _PREFIX.size + len(header) + size
        job = self._jobs[request]
        if not self._has_room(request, job, total) or frame.seq > kept.next_seq or size > MAX_FRAME_BYTES:
            _log.info("spool: %s of job %s is cut at %d", edge, request[:8], kept.next_seq)
            self._cut(request, edge, kept)
            return
        prefix = _PREFIX.pack(len(header), zlib.crc32(header), size)
        try:
            self._append(request, edge, [prefix + header, *payload], total)
        except OSError as error:
            _log.warning("spool: %s of job %s is cut: %s", edge, request[:8], error)
            self._cut(request, edge, kept)
            return
        kept.next_seq += 1
        kept.bytes += total
        self._count(request, job, total)

    def read(self, request: str, edge: str, first: int = 0) -> Iterator[tuple[int, Frame[Array]]]:
        """(attempt, frame) from seq `first` on, as far as there are any when the iterator gets there.

        Raises:
            BadInput: a malformed name.

        """
        _check_names(request, edge)
        return self._read(self._directory / request / edge, edge, first)

    def keep_sent(self, said: FrameStatement) -> None:
        """Keep a statement as long as the job's frames. A full disk or cap is no error, as in `write`."""
        line = said.to_json().encode() + b"\n"
        job = self._jobs.setdefault(said.request, _Job())
        if not self._has_room(said.request, job, len(line)):
            _log.info("spool: a statement of job %s is not kept", said.request[:8])
            job.is_whole = False
            return
        try:
            self._append(said.request, _SENT, [line], len(line))
        except OSError as error:
            _log.warning("spool: a statement of job %s is not kept: %s", said.request[:8], error)
            job.is_whole = False
            return
        self._count(said.request, job, len(line))

    def sent(self, request: str) -> Iterator[FrameStatement]:
        """The job's statements, in the order in which they were kept. Raises BadInput for a malformed id."""
        _check_names(request, "edge")
        try:
            with (self._directory / request / _SENT).open("rb") as lines:
                for line in lines:
                    try:
                        yield FrameStatement.parse(line)
                    except BadInput:
                        continue  # a tail that a dying machine did not write whole
        except FileNotFoundError:
            return

    def is_whole(self, request: str) -> bool:
        """Whether all frames and statements of the job that this process was given to keep are here."""
        job = self._jobs.get(request)
        return job is None or job.is_whole

    def keep_until(self, request: str, time_s: float) -> None:
        """Allow `sweep` to delete the job from `time_s` (unix seconds) on. Raises BadInput for a malformed id."""
        _check_names(request, "edge")
        self._return(request)
        job = self._jobs.get(request)
        if job is None:
            return
        job.until_s = time_s
        try:
            (self._directory / request / _UNTIL).write_text(str(int(time_s)))
        except OSError as error:
            _log.warning("spool: job %s is kept for this process's life only: %s", request[:8], error)

    def sweep(self, now_s: float, but: Container[str] = ()) -> int:
        """Delete the jobs whose time has passed, `but` those not, whatever theirs is; how many bytes that freed."""
        before = self.bytes
        for request, job in list(self._jobs.items()):
            if job.until_s is not None and job.until_s <= now_s and request not in but:
                self.remove(request)
        return before - self.bytes

    def remove(self, request: str) -> None:
        """Delete a job; iterators that read it go on."""
        self._return(request)
        job = self._jobs.pop(request, None)
        if job is None:
            return
        self.bytes -= job.bytes
        for place in [p for p in self._open if p[0] == request]:
            os.close(self._open.pop(place))
        shutil.rmtree(self._directory / request, ignore_errors=True)

    def close(self) -> None:
        """Close the files; what is in them stays."""
        while self._open:
            os.close(self._open.popitem()[1])

    # Inside.

    def _has_room(self, request: str, job: _Job, nbytes: int) -> bool:
        """Whether a job may write so much more: of its own room, or of what is reserved for no other."""
        others = self._reserved - self._room.get(request, 0)
        most = self._max_bytes - others if nbytes > self._room.get(request, 0) else self._max_bytes
        return job.bytes + nbytes <= self._max_job_bytes and self.bytes + nbytes <= most

    def _count(self, request: str, job: _Job, nbytes: int) -> None:
        """So much has been written of a job."""
        job.bytes += nbytes
        self.bytes += nbytes
        if left := self._room.get(request, 0):
            self._room[request] = max(0, left - nbytes)
            self._reserved -= min(left, nbytes)

    def _return(self, request: str) -> None:
        """A job needs the room no more that was reserved for it."""
        self._reserved -= self._room.pop(request, 0)

    def _edge(self, request: str, edge: str) -> _Edge:
        job = self._jobs.get(request)
        if job is not None and (kept := job.edges.get(edge)) is not None:
            return kept
        _check_names(request, edge)
        if job is None:
            job = self._jobs[request] = _Job()
        path = self._directory / request / edge
        kept = job.edges[edge] = _scan(path) if path.is_file() else _Edge()
        return kept

    def _append(self, request: str, edge: str, buffers: list[bytes | bytearray | memoryview], total: int) -> None:
        descriptor = self._open.get((request, edge))
        if descriptor is None:
            path = self._directory / request / edge
            path.parent.mkdir(exist_ok=True)
            descriptor = self._open[request, edge] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if len(self._open) > _MAX_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        if (written := os.writev(descriptor, buffers)) != total:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(f"wrote {written} of {total} bytes")

    def _cut(self, request: str, edge: str, kept: _Edge) -> None:
        kept.cut = True
        self._jobs[request].is_whole = False
        try:
            self._append(request, edge, [_CUT], len(_CUT))
        except OSError as error:  # the mark is for a later process; this one knows
            _log.warning("spool: %s of job %s: %s", edge, request[:8], error)

    def _read(self, path: Path, edge: str, first: int) -> Iterator[tuple[int, Frame[Array]]]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            offset = seq = 0
            while (record := _record(descriptor, offset, seq)) is not None:
                header, start = record
                if seq >= first:
                    payload = bytearray(header.nbytes)
                    if os.preadv(descriptor, [payload], start) != header.nbytes:
                        return
                    yield header.attempt, Frame(edge, seq, header.arrays(memoryview(payload)), header.meta)
                offset, seq = start + header.nbytes, seq + 1
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class _Edge:
    next_seq: int = 0
    bytes: int = 0
    cut: bool = False


@dataclass(slots=True)
class _Job:
    edges: dict[str, _Edge] = field(default_factory=dict)
    """Those that this process wrote or read."""
    bytes: int = 0
    is_whole: bool = True
    until_s: float | None = None


def _check_names(request: str, edge: str) -> None:
    if not _REQUEST.fullmatch(request):
        raise BadInput("request", "not 64 lowercase hex digits")
    if not _EDGE.fullmatch(edge) or edge == _UNTIL:
        raise BadInput("edge", "not a name")


def _found(path: Path) -> _Job:
    """What an earlier process left of a job."""
    job = _Job()
    newest_s = 0.0
    for entry in os.scandir(path):
        about = entry.stat()
        newest_s = max(newest_s, about.st_mtime)
        job.bytes += about.st_size if entry.name != _UNTIL else 0
    try:
        job.until_s = float((path / _UNTIL).read_bytes()[:20])
    except (OSError, ValueError):
        job.until_s = newest_s + ORPHAN_S
    return job


def _scan(path: Path) -> _Edge:
    """The state of a file that an earlier process wrote; what is no whole record at its end is not gone into."""
    kept = _Edge()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        while (record := _record(descriptor, kept.bytes, kept.next_seq)) is not None:
            header, start = record
            if start + header.nbytes > size:
                break
            kept.bytes, kept.next_seq = start + header.nbytes, kept.next_seq + 1
        kept.cut = kept.bytes < size
    finally:
        os.close(descriptor)
    return kept


def _record(descriptor: int, offset: int, seq: int) -> tuple[DataHeader, int] | None:
    """Header and start of the payload of the record at `offset`, if there is one and it has this seq."""
    head = os.pread(descriptor, _HEAD_BYTES, offset)
    if len(head) < _PREFIX.size:
        return None
    length, checksum, size = _PREFIX.unpack_from(head)
    if length > MAX_HEADER_BYTES or size > MAX_FRAME_BYTES:
        return None
    start = _PREFIX.size + length
    if start > len(head):
        head = os.pread(descriptor, start, offset)
    packed = head[_PREFIX.size : start]
    if zlib.crc32(packed) != checksum or len(packed) != length:
        return None
    try:
        header = frames.unpack_record(packed)
    except BadInput:
        return None
    if header.seq != seq or header.nbytes != size:
        return None
    return header, offset + start
