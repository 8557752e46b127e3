"""Bytes of links with a random part made another, and what nodewire reads in them, for other readers.

`python -m tests.interop.random_frames FILE [NUMBER] [SEED]` writes one JSON document a line: the bytes in hex, what was
read before the end or the first fault, and that fault's code. Fillers are not told.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from nodewire.errors import NodewireError
from nodewire.protocol.encoding.canonical import encode
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder, FrameMemory
from nodewire.wire.framing.frames import DataHeader, Type

NUMBER = 2_000
SEED = 2_026
_SIZES = {"float32": 4, "bfloat16": 2, "int64": 8, "uint8": 1, "bool": 1}
_VALUES = (None, True, False, 0, -1, 1, 127, 128, 2**16, 2**40 - 1, 2**40, 2**53 - 1, 2**53, 2**63, -(2**63), 1.5)
_VALUES += (
    "",
    "e",
    "é" * 64,
    "é" * 65,
    b"",
    bytes(16),
    bytes(32),
    [],
    [1],
    {},
    {"t": "x"},
    {1: 2},
    "mxint8",
    "float64",
)


def write(file: Path, number: int = NUMBER, seed: int = SEED) -> None:
    with file.open("w") as out:
        for case in range(number):
            random = Random(seed * 1_000_000 + case)
            data = bytearray(b"".join(_frame(random) for _ in range(random.randrange(1, 4))))
            for _ in range(random.choice([0, 0, 0, 1, 2])):
                data[random.choice([random.randrange(len(data)), random.randrange(min(200, len(data)))])] ^= (
                    random.choice([1, 2, 128, 255])
                )
            out.write(json.dumps(_case(bytes(data))) + "\n")


def _frame(random: Random) -> bytes:
    match random.randrange(6):
        case 0 | 1:
            return _data(random)
        case 2:
            document: Any = {
                "t": random.choice(["x", "error", 1]),
                "a": _some(random),
                "b": [_some(random)] * random.choice([1, 5, 2_040, 2_043, 2_044]),
            }
            packed = _packed(random, dict(sorted(document.items())))
            return _raw(Type.CONTROL, b"", packed)
        case 3:
            fields = [
                random.choice([bytes(32), bytes(32), bytes(31)]),
                random.choice(["e", "", 1]),
                0,
                random.choice([5, *_VALUES]),
            ]
            return _raw(Type.CREDIT, _packed(random, fields), b"")
        case 4:
            kind = random.choice([Type.PING, Type.PONG])
            return _raw(kind, b"", b"", random.randrange(2**16))
        case _:
            return frames.filler(random.choice([0, 1, 200]))


def _data(random: Random) -> bytes:
    tensors = []
    size = 0
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        dtype = random.choice(sorted(_SIZES))
        shape = [random.randrange(4) for _ in range(random.choice([0, 1, 2, 3, 9 if random.random() < 0.05 else 1]))]
        numbers = 1
        for dimension in shape:
            numbers *= dimension
        if random.random() < 0.3:
            rows, width = random.randrange(3), random.choice([0, 1, 31, 32, 33, 70])
            dtype, shape, numbers = "mxint8", [rows, width], rows * (-(-width // 32) + width)
        tensors.append([dtype, shape])
        size += numbers * _SIZES.get(dtype, 1)
    if random.random() < 0.01:
        tensors.append(["uint8", [400_000]])
        size += 400_000
    meta = {random.choice(["pos", "chunk", "é", "b"]): _some(random) for _ in range(random.randrange(3))}
    fields: list[Any] = [bytes(32), "e", random.choice([0, 0, 0, 1]), random.randrange(300), bytes(16), tensors, meta]
    if random.random() < 0.3:
        fields[random.randrange(7)] = _some(random)
    stream, body = random.randrange(3), random.randbytes(size)
    made = _raw(Type.DATA, _packed(random, fields), body[: frames.SEGMENT_BYTES], stream)
    for start in range(frames.SEGMENT_BYTES, size, frames.SEGMENT_BYTES):
        made += _raw(Type.PING, b"", b"", 7) + _raw(Type.MORE, b"", body[start : start + frames.SEGMENT_BYTES], stream)
    return made


def _some(random: Random) -> Any:
    return random.choice(_VALUES if random.random() < 0.3 else (0, 1, 300, "x", b"y", None, True))


def _packed(random: Random, value: Any) -> bytes:
    """Canonical, where that is not said otherwise: an integer in a longer form, or more behind it."""
    packed = msgpack.packb(value)
    assert isinstance(packed, bytes)
    match random.randrange(12):
        case 0:
            return packed.replace(b"\x01", b"\xcd\x00\x01", 1)
        case 1:
            return packed + b"\xc0"
        case _:
            return packed


def _raw(kind: int, header: bytes, payload: bytes, stream: int = 0) -> bytes:
    return frames.PREFIX.pack(1, kind, stream, len(header), len(payload)) + header + payload


class _Heard:
    """What a decoder says, as JSON."""

    def __init__(self) -> None:
        self.said: list[list[Any]] = []

    def data_begins(self, header: DataHeader) -> FrameMemory:
        return FrameMemory(memoryview(bytearray(header.nbytes)), is_expected=True)

    def data_ends(self, header: DataHeader, buffer: memoryview) -> None:
        body = sha256(buffer).hexdigest()
        about = [header.job, header.edge, header.attempt, header.seq, header.key.hex()]
        tensors = [[dtype, list(shape)] for dtype, shape in header.tensors]
        self.said.append(["data", *about, tensors, sha256(encode(dict(header.meta))).hexdigest(), body])

    def stray(self, nbytes: int) -> None:
        """Nobody counts here."""

    def control(self, document: dict[str, Any]) -> None:
        self.said.append(["control", sha256(encode(document)).hexdigest()])

    def credit(self, job: str, edge: str, attempt: int, limit: int) -> None:
        self.said.append(["credit", job, edge, attempt, limit])

    def ping(self, tag: int) -> None:
        self.said.append(["ping", tag])

    def pong(self, tag: int) -> None:
        self.said.append(["pong", tag])


def _case(data: bytes) -> dict[str, Any]:
    heard = _Heard()
    decoder, at = Decoder(heard), 0
    error = None
    try:
        while at < len(data):
            buffer = decoder.get_buffer()
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            decoder.buffer_updated(size)
            at += size
    except NodewireError as raised:
        error = raised.code
    return {"bytes": data.hex(), "said": heard.said, "error": error}


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
