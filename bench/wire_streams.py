"""Streams of frames as links write them, the same spoilt by seeded choices, and what a plain reader finds in either.

The reader follows NIPS.md, 10.2, over whole streams and shares no code with nodewire/wire: where the two differ, one
of them is wrong.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from bench import mutations
from nodewire.protocol import canonical
from nodewire.protocol.plan import tensor_key

PREFIX = struct.Struct("!BBHIQ")
DATA, MORE, CONTROL, CREDIT, PING, PONG, FILLER = range(1, 8)
HEADERS = {DATA: 4_096, CREDIT: 4_096}
PAYLOADS = {DATA: 262_144, MORE: 262_144, CONTROL: 65_536, FILLER: 131_072}
SEGMENT = 262_144
ITEMS = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1, "mxint8": 1}
JOB, BESIDE, CLOSED, UNKNOWN = (hashlib.sha256(name).hexdigest() for name in (b"job", b"beside", b"closed", b"?"))
"""Jobs of the node that is read at: the producer's own, one of others, one that is over, none."""
PRODUCED, OTHERS, ANSWERS = "hidden.0", "hidden.1", "answers"
"""Edges of JOB: of the producer, of somebody else, and the one that leads to the producer."""
LARGEST_FRAME = 1_200_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A frame before it is packed; a CONTROL frame's payload is a document until then."""

    kind: int
    stream: int = 0
    header: tuple[Any, ...] = ()
    payload: Any = b""

    def pack(self) -> bytes:
        header = msgpack.packb(self.header, use_bin_type=True) if self.header else b""
        payload = self.payload if isinstance(self.payload, bytes) else canonical.encode(self.payload)
        return PREFIX.pack(1, self.kind, self.stream, len(header), len(payload)) + header + payload


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
        return self.key == tensor_key(self.job.hex(), self.edge, self.attempt, self.seq)


def data(job: str, edge: str, seq: int, shapes: Sequence[tuple[str, tuple[int, ...]]], **how: Any) -> list[Piece]:
    """A frame's DATA and MORE pieces; bytes are drawn by its name."""
    attempt, stream, meta = how.get("attempt", 0), how.get("stream", 0), how.get("meta", {"pos": seq})
    key = tensor_key(job, edge, attempt, seq)
    size = sum(size_of(dtype, shape) for dtype, shape in shapes)
    raw = random.Random(key).randbytes(size)
    header = (bytes.fromhex(job), edge, attempt, seq, key, [[dtype, list(shape)] for dtype, shape in shapes], meta)
    return [
        Piece(DATA, stream, header, raw[:SEGMENT]),
        *(Piece(MORE, stream, (), raw[at : at + SEGMENT]) for at in range(SEGMENT, size, SEGMENT)),
    ]


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


_ERROR = {"code": "bad-frame", "field": "seq", "reason": "of a peer", "retryable": False, "pays": "sender"}
_WANT = {
    "v": 1, "what": "frames", "request": JOB, "task": "layers.0", "edges": [], "attempt": 0, "first": 0, "last": 1,
    "epoch": 0,
}  # fmt: skip
_PULL = {"t": "pull", "job": UNKNOWN, "want": _WANT, "nonce": bytes(16), "limit": 65_536}
_HARMLESS: tuple[dict[str, Any], ...] = (
    {"t": "close", "job": JOB, "close": {"chunk": 0, "sig": "00" * 64}},
    {"t": "sent", "job": JOB, "sent": [{"edge": PRODUCED, "chunk": 0}]},
    {"t": "unsent", "job": JOB, "edge": PRODUCED, "first": 0},
    {"t": "resume", "job": JOB, "edge": ANSWERS, "first": 0},
    {"t": "lost", "job": JOB, "peer": "ab" * 32},
    {"t": "takeover", "job": JOB, "takeover": {"v": 1, "attempt": 1, "replaced": [["x", "ab" * 32, "cd" * 32, 0]]}},
    {"t": "stale", "job": JOB, "takeover": {}},
    _PULL,
    {"t": "presence", "job": JOB},
    {"t": "present", "job": JOB, "held": True},
    {"t": "coordinates", "at": [100, -100, 500], "error": 100_000},
    {"t": "withdraw", "job": UNKNOWN},
    {"t": "something new", "n": 5},
)
_ENDING: tuple[dict[str, Any], ...] = (
    {"t": "error", "job": JOB, "attempt": 0, "error": _ERROR},
    {"t": "cancel", "job": JOB, "attempt": 0, "error": _ERROR},
    {"t": "bye", "error": _ERROR},
    {"t": "auth", "event": "{}"},
    {"t": "welcome"},
    {"t": "refuse", "error": _ERROR},
)


def _streams() -> list[list[Piece]]:
    """Each is a producer's, and valid at a node where it produces PRODUCED of JOB; what ends that comes last."""
    small = [("float32", (1, 2, 4)), ("int32", ()), ("bool", (3,))]
    made: list[list[Piece]] = []
    for seed in range(24):
        rng = random.Random(seed)
        shapes = [small, [], [("uint8", (0, 7))], [("mxint8", (2, 33))], [("bfloat16", (64,)), ("int64", (2, 2))]]
        pieces: list[Piece] = []
        for seq in range(4):
            meta = {"pos": seq, "chunk": 0, "text": "x" * rng.randrange(40), "end": seq == 3, "none": None, "b": b"\0"}
            attempt, stream = rng.choice((0, 0, 0, 1)), rng.randrange(64)
            pieces += data(JOB, PRODUCED, seq, rng.choice(shapes), attempt=attempt, stream=stream, meta=meta)
            pieces += rng.sample(_between(rng), 2)
        if seed % 3 == 0:
            pieces.append(Piece(CONTROL, payload=rng.choice(_ENDING)))
        made.append(pieces)
    long = data(JOB, PRODUCED, 0, [("uint8", (SEGMENT + 5_000,))], stream=9)
    made.append([long[0], Piece(PING, 3), *data(UNKNOWN, PRODUCED, 0, small, stream=2), *long[1:]])
    made.append([*data(JOB, PRODUCED, 0, [("float32", (2 * SEGMENT // 4,))], stream=1), Piece(PONG, 1)])
    return made


def _between(rng: random.Random) -> list[Piece]:
    limit = rng.choice((0, 2**20, 2**40))
    credit = Piece(CREDIT, 0, (bytes.fromhex(JOB), ANSWERS, 0, limit))
    documents = [Piece(CONTROL, payload=document) for document in rng.sample(_HARMLESS, 3)]
    return [credit, Piece(PING, rng.randrange(2**16)), Piece(PONG, 7), Piece(FILLER, payload=bytes(100)), *documents]


STREAMS = _streams()
PACKED = [b"".join(piece.pack() for piece in pieces) for pieces in STREAMS]
_LONG = 24  # streams from here on take milliseconds to be copied
_SHORT = PACKED[:_LONG]


def is_harmless(pieces: Sequence[Piece]) -> bool:
    """Whether a stream as it is ends neither its job nor its link."""
    return pieces[-1].payload not in _ENDING


# What is spoilt.


def spoilt(rng: random.Random) -> tuple[str, bytes]:
    """A stream in which one frame or more is not as a link has written it, and how."""
    index = rng.randrange(_LONG) if rng.random() < 0.98 else rng.randrange(_LONG, len(STREAMS))
    name = rng.choice(tuple(KINDS))
    return name, KINDS[name](rng, index)


def _bits(rng: random.Random, index: int) -> bytes:
    made = bytearray(PACKED[index])
    for _ in range(1 << rng.randrange(4)):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _stretches(rng: random.Random, index: int) -> bytes:
    return mutations.of_bytes(rng, PACKED[index][: mutations.MOST_BYTES], _SHORT)


def _cut(rng: random.Random, index: int) -> bytes:
    """The end is missing, or something before it."""
    packed = PACKED[index]
    at = rng.randrange(len(packed))
    return packed[:at] if rng.random() < 0.5 else packed[:at] + packed[at + rng.randrange(1, 400) :]


def _spliced(rng: random.Random, index: int) -> bytes:
    """The beginning of one stream, the end of another."""
    one, other = PACKED[index], rng.choice(_SHORT)
    return one[: rng.randrange(len(one))] + other[rng.randrange(len(other)) :]


def _reordered(rng: random.Random, index: int) -> bytes:
    pieces = list(STREAMS[index])
    for _ in range(1 << rng.randrange(3)):
        at, to = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        pieces[at], pieces[to] = pieces[to], pieces[at]
    return _joined(pieces)


def _doubled(rng: random.Random, index: int) -> bytes:
    pieces = list(STREAMS[index])
    at = rng.randrange(len(pieces))
    pieces[at:at] = [rng.choice(pieces)] * rng.choice((1, 1, 2, 70 if index < _LONG else 2))
    return _joined(pieces)


def _dropped(rng: random.Random, index: int) -> bytes:
    pieces = list(STREAMS[index])
    del pieces[rng.randrange(len(pieces))]
    return _joined(pieces)


def _prefixes(rng: random.Random, index: int) -> bytes:
    """Lengths, and all else that a prefix says."""
    packed = [piece.pack() for piece in STREAMS[index]]
    at = rng.randrange(len(packed))
    fields = list(PREFIX.unpack_from(packed[at]))
    which = rng.choice((0, 1, 2, 3, 3, 4, 4, 4))
    most = (2**8, 2**8, 2**16, 2**32, 2**64)[which]
    edges = (0, 1, fields[which] - 1, fields[which] + 1, 4_096, 4_097, SEGMENT, SEGMENT + 1, 65_536, 65_537, 131_073)
    fields[which] = rng.choice((*edges, *mutations.NUMBERS)) % most
    packed[at] = PREFIX.pack(*fields) + packed[at][PREFIX.size :]
    return b"".join(packed)


def _headers(rng: random.Random, index: int) -> bytes:
    """A header's fields, packed as a peer can: with the name that then is right, or with the old one."""
    pieces = list(STREAMS[index])
    at = rng.choice([n for n, piece in enumerate(pieces) if piece.kind == DATA])
    fields: list[Any] = list(pieces[at].header)
    for _ in range(rng.choice((1, 1, 2))):
        which = rng.randrange(9)
        if which == 7:
            fields.append(0)
        elif which == 8:
            del fields[rng.randrange(len(fields))]
            break
        else:
            fields[which] = _field(rng, which, fields[which])
    if rng.random() < 0.6 and len(fields) == 7:
        job, edge, attempt, seq = fields[:4]
        can_be = isinstance(job, bytes) and isinstance(edge, str) and type(attempt) is int and type(seq) is int
        if can_be and 0 <= attempt < 2**16 and 0 <= seq < 2**53:
            fields[4] = tensor_key(job.hex(), edge, attempt, seq)
    pieces[at] = replace(pieces[at], header=tuple(fields))
    return _joined(pieces)


_LARGE = [["uint8", [LARGEST_FRAME]]]
_COUNTS = {str(n): n for n in range(64)}


def _field(rng: random.Random, which: int, now: Any) -> Any:
    jobs = [bytes.fromhex(job) for job in (JOB, BESIDE, CLOSED, UNKNOWN)]
    dtype, shape = rng.choice((*ITEMS, "float64", "")), [rng.choice((0, 1, 2, 3, 2**20, 2**39, 2**40, -1))]
    shape *= rng.choice((0, 1, 1, 2, 8, 9))
    choices: tuple[Sequence[Any], ...] = (
        (*jobs, b"", bytes(31), JOB, rng.randbytes(32)),
        (OTHERS, ANSWERS, "", "x" * 64, "x" * 65, b"hidden.0", "hidden.0\0", PRODUCED.upper()),
        (0, 1, 2, 2**16 - 1, 2**16, -1, "0", True),
        (0, 1, 2, 3, 4, 2**53 - 1, 2**53, 2**64 - 1, -1, 1.0, False),
        (bytes(16), b"", bytes(17), rng.randbytes(16), None),
        ([[dtype, shape]], [], [[dtype, shape]] * 64, [[dtype, shape]] * 65, [[dtype]], {}, _LARGE),
        ({}, _COUNTS, {**_COUNTS, "x": 0}, {"a": []}, {"a": 1.5}, {"a": "x" * 4_096}, []),
    )  # fmt: skip
    every = (None, 0, "", b"", [], {}, 2**64 - 1, msgpack.ExtType(1, b"x"))
    return rng.choice(choices[which]) if rng.random() < 0.9 else rng.choice(every)


def _documents(rng: random.Random, index: int) -> bytes:
    pieces = list(STREAMS[index])
    document = rng.choice((*_HARMLESS, *_ENDING))
    match rng.randrange(4):
        case 0:
            payload = mutations.of_bytes(rng, canonical.encode(document), _SHORT)
        case 1:
            payload = msgpack.packb({**document, "x": rng.choice((0.5, msgpack.ExtType(5, b""), msgpack.Timestamp(1)))})
        case _:
            payload = _packed(mutations.of_document(rng, document, binary=True))
    pieces.insert(rng.randrange(len(pieces) + 1), Piece(CONTROL, payload=payload[:65_600]))
    return _joined(pieces)


def _packed(document: Any) -> bytes:
    try:
        return bytes(msgpack.packb(_sorted(document), use_bin_type=True))
    except (ValueError, OverflowError):  # a lone surrogate, or beyond 64 bits: there are no such bytes
        return b"\xc1"


def _credits(rng: random.Random, index: int) -> bytes:
    pieces = list(STREAMS[index])
    fields: list[Any] = [bytes.fromhex(JOB), rng.choice((ANSWERS, PRODUCED)), 0, rng.choice(mutations.NUMBERS)]
    which = rng.randrange(5)
    if which < 3:
        fields[which] = _field(rng, which, None)
    elif which == 3:
        fields[3] = rng.choice((-1, 2**63, 2**63 - 1, 1.0, "1", None, True))
    pieces.insert(rng.randrange(len(pieces) + 1), Piece(CREDIT, 0, tuple(fields)))
    return _joined(pieces)


def _joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece.pack() for piece in pieces)


KINDS: Mapping[str, Callable[[random.Random, int], bytes]] = {
    "bits": _bits, "stretches": _stretches, "cut": _cut, "spliced": _spliced, "reordered": _reordered,
    "doubled": _doubled, "dropped": _dropped, "prefixes": _prefixes, "headers": _headers, "documents": _documents,
    "credits": _credits,
}  # fmt: skip


# The plain reader.


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
                found.append(Read(*fields, bytes(done)))
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
        again = msgpack.packb(_sorted(document), use_bin_type=True)
    except Exception as error:
        raise _NoFrame from error
    _must(again == payload and isinstance(document, dict) and isinstance(document.get("t"), str))
    _must(_is_plain(document, 0))
    found: dict[str, Any] = document
    return found


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: str(key).encode())}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _is_plain(value: Any, depth: int) -> bool:
    if depth > 32:
        return False
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(item, depth + 1) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item, depth + 1) for item in value)
    return type(value) in (int, str, bytes, bool, type(None))
