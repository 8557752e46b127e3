"""Streams of frames as links write them, for `bench.fuzz.fuzz_wire` and `bench.fuzz.wire.spoilt_streams`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from bench.fuzz.wire.plain_reader import CONTROL, CREDIT, DATA, FILLER, MORE, PING, PONG, PREFIX, SEGMENT, size_of
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.plan import tensor_key

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


_ERROR = {"code": "bad-frame", "field": "seq", "reason": "of a peer", "retryable": False, "pays": "sender"}
_WANT = {
    "v": 1, "what": "frames", "request": JOB, "task": "layers.0", "edges": [], "attempt": 0, "first": 0, "last": 1,
    "epoch": 0,
}  # fmt: skip
_PULL = {"t": "pull", "job": UNKNOWN, "want": _WANT, "nonce": bytes(16), "limit": 65_536}
HARMLESS: tuple[dict[str, Any], ...] = (
    {"t": "close", "job": JOB, "close": {"chunk": 0, "sig": "00" * 64}},
    {"t": "sent", "job": JOB, "sent": [{"edge": PRODUCED, "chunk": 0}]},
    {"t": "unsent", "job": JOB, "edge": PRODUCED, "first": 0},
    {"t": "resume", "job": JOB, "edge": ANSWERS, "first": 0},
    _PULL,
    {"t": "presence", "job": JOB},
    {"t": "present", "job": JOB, "held": True},
    {"t": "coordinates", "at": [100, -100, 500], "error": 100_000},
    {"t": "withdraw", "job": UNKNOWN},
    {"t": "something new", "n": 5},
)
ENDING: tuple[dict[str, Any], ...] = (
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
            stream = rng.randrange(64)
            pieces += data(JOB, PRODUCED, seq, rng.choice(shapes), stream=stream, meta=meta)
            pieces += rng.sample(_between(rng), 2)
        if seed % 3 == 0:
            pieces.append(Piece(CONTROL, payload=rng.choice(ENDING)))
        made.append(pieces)
    long = data(JOB, PRODUCED, 0, [("uint8", (SEGMENT + 5_000,))], stream=9)
    made.append([long[0], Piece(PING, 3), *data(UNKNOWN, PRODUCED, 0, small, stream=2), *long[1:]])
    made.append([*data(JOB, PRODUCED, 0, [("float32", (2 * SEGMENT // 4,))], stream=1), Piece(PONG, 1)])
    return made


def _between(rng: random.Random) -> list[Piece]:
    limit = rng.choice((0, 2**20, 2**40))
    credit = Piece(CREDIT, 0, (bytes.fromhex(JOB), ANSWERS, 0, limit))
    documents = [Piece(CONTROL, payload=document) for document in rng.sample(HARMLESS, 3)]
    return [credit, Piece(PING, rng.randrange(2**16)), Piece(PONG, 7), Piece(FILLER, payload=bytes(100)), *documents]


STREAMS = _streams()
PACKED = [b"".join(piece.pack() for piece in pieces) for pieces in STREAMS]


def is_harmless(pieces: Sequence[Piece]) -> bool:
    """Whether a stream as it is ends neither its job nor its link."""
    return pieces[-1].payload not in ENDING
