"""Streams of frames, spoilt by seeded choices: what `bench.fuzz.fuzz_wire` has read."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from bench.fuzz import mutations
from bench.fuzz.wire.plain_reader import CONTROL, CREDIT, DATA, ITEMS, PREFIX, SEGMENT, in_order
from bench.fuzz.wire.streams import (
    ANSWERS,
    BESIDE,
    CLOSED,
    ENDING,
    HARMLESS,
    JOB,
    LARGEST_FRAME,
    OTHERS,
    PACKED,
    PRODUCED,
    STREAMS,
    UNKNOWN,
    Piece,
)
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.plan import tensor_key

_LONG = 24  # streams from here on take milliseconds to be copied
_SHORT = PACKED[:_LONG]


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
    document = rng.choice((*HARMLESS, *ENDING))
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
        return bytes(msgpack.packb(in_order(document), use_bin_type=True))
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
