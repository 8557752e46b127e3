"""Well-formed bytes, documents and safetensors files made malformed, or nearly so, by seeded choices."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

MOST_BYTES = 200_000
"""Of what mutation makes of a small input: long enough to be above every cap of a document."""

NUMBERS = (0, 1, -1, 2, 127, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**48, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, 10**6)
TEXTS = (
    "", " ", "0", "-0.0", "nan", "inf", "1e400", "1e-400", "1_0", "0x10", " 1.0", "1.0 ", "٣", "\x00", "é" * 40, "../x",
    "a" * 65, "f" * 64, "F" * 64, "0" * 128, "1e12", "1e+16", "9" * 5_000, "None", "__class__",
    "!!python/object:os.system",
    "cos\nsystem\n(S'true'\ntR.", "http://127.0.0.1/", "\ud800",
)  # fmt: skip
FLOATS = (0x7FC00000, 0x7F800000, 0xFF800000, 0x00000001, 0x80000000, 0x7F7FFFFF, 0x5F800001, 0xFFFFFFFF)
"""Not a number, infinities, the smallest, minus zero, the largest, above 2^64, another that is not a number."""
_DEEP, _DEPTH = "\x01deep\x01", 1_015


def of_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A few changes of single bytes or stretches."""
    made = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at = rng.randrange(len(made) + 1)
        length = min(len(made) - at, 1 << rng.randrange(10))
        match rng.randrange(9):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(made):
                made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDF, 0xFE, 0xFF, rng.randrange(256)))
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = rng.randbytes(length or 1)
            case 4:
                made[at:at] = made[at : at + length] * rng.choice((1, 2, 50))
            case 5:
                del made[at:]
            case 6:
                other = rng.choice(others)
                begin = rng.randrange(len(other) + 1)
                made[at : at + length] = other[begin : begin + length]
            case 7:
                number = rng.choice(NUMBERS) & (2**64 - 1)
                made[at : at + 8] = struct.pack(rng.choice(("<Q", ">Q")), number)
            case 8:
                made[at : at + 4] = struct.pack("<I", rng.choice(FLOATS))
        if len(made) > MOST_BYTES:
            del made[MOST_BYTES:]
    return bytes(made)


def of_document(rng: random.Random, document: Any, *, binary: bool = False) -> Any:
    """A few values exchanged, left out, added or multiplied. `binary`: also by what JSON has no form for."""
    made = deepcopy(document)
    for _ in range(1 << rng.randrange(3)):
        holders = list(_holders(made))
        if not holders:
            return _value(rng, made, binary)
        holder = rng.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            if isinstance(holder, dict):
                holder["x"] = _value(rng, None, binary)
            else:
                holder.append(_value(rng, None, binary))
            continue
        key = rng.choice(keys)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("x", "", "v", "name", "__class__", "model_config", key + "x"))] = holder[key]
            case 1 | 2 if isinstance(holder, list):
                holder[key:key] = [holder[key]] * rng.choice((1, 2, 300))
            case 3:
                other = rng.choice(holders)
                if len(json.dumps(other, default=repr)) < 5_000:
                    holder[key] = deepcopy(other)
            case _:
                holder[key] = _value(rng, holder[key], binary)
    if rng.random() < 0.03 and isinstance(made, dict) and made:
        made[rng.choice(list(made))] = _DEEP
    return made


def of_safetensors(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The header's document changed, its length, or numbers behind it."""
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], bytearray(data[8 + length :])
    match rng.randrange(5):
        case 0:
            return of_bytes(rng, data, others)
        case 1:
            document = of_document(rng, json.loads(header))
            header = dumps(document)
        case 2:
            length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, rng.randrange(2**64)))
            return struct.pack("<Q", max(0, length)) + header + body
        case 3:
            header = header.replace(
                rng.choice((b"F32", b"I8", b"U8", b"I64", b"shape")), rng.choice((b"F64", b"BF16", b""))
            )
        case 4:
            for _ in range(1 << rng.randrange(6)):
                if len(body) >= 4:
                    at = rng.randrange(len(body) // 4) * 4
                    word = rng.choice((*FLOATS, rng.randrange(2**32)))
                    body[at : at + 4] = struct.pack("<I", word)
    return struct.pack("<Q", len(header)) + header + body


def dumps(document: Any) -> bytes:
    """JSON; where a value is to be nested deeply it is, almost as deeply as a reader takes it."""
    text = json.dumps(document).encode("utf-8", "replace")
    return text.replace(json.dumps(_DEEP).encode(), b"[" * _DEPTH + b"]" * _DEPTH)


def of_toml(rng: random.Random, text: str) -> str:
    """A value, a key or a line exchanged."""
    lines = text.splitlines()
    for _ in range(1 << rng.randrange(3)):
        at = rng.randrange(len(lines))
        name, _, _ = lines[at].partition("=")
        match rng.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = rng.choice(("[family]", "[[data]]", "[a.b.c]", "v = 2", 'v = "1"', "x" * 50, "= 1", "\x00"))
            case _:
                lines[at] = f"{name}= {rng.choice(_TOML)}"
        if not lines:
            return ""
    return "\n".join(lines)


_TOML = (
    *(str(number) for number in NUMBERS), *(json.dumps(one) for one in TEXTS[:-1]), "nan", "-inf", "1e400",
    "0x7fffffff", "0x" + "f" * 20_000,
    "9" * 5_000, "1979-05-27T07:32:00Z", "07:32:00", "true", "[]", "{}", "[" * 3_000, "[" * 400 + "]" * 400,
    "{a = {b = 1}}",
    "0.30000000000000004", "1e12", "1.0000000000001e12", "'''", "-1", "-0.5",
)  # fmt: skip


def _holders(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def _value(rng: random.Random, now: Any, binary: bool) -> Any:
    """Another value, often of the same type."""
    if isinstance(now, bool):
        choices: Sequence[Any] = (not now, 1, None)
    elif isinstance(now, int):
        choices = (*NUMBERS, now + 1, now - 1, -now, float(now), str(now), now * 2**20)
    elif isinstance(now, str):
        choices = (*TEXTS, now[:-1], now + now[-1:], now.upper(), now * 200, now[::-1])
    else:
        choices = (None, [], {}, [now], 0)
    every = (None, True, 0.5, 1e308, [], {}, [[]], "x", -1, _nested(rng.choice((10, 40)), rng.random() < 0.5))
    if binary:
        every += (b"", b"\xff" * 40, float("nan"), float("inf"))
    return rng.choice(choices) if rng.random() < 0.7 else rng.choice(every)


def _nested(depth: int, in_lists: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if in_lists else {"v": value}
    return value


def of_bits(rng: random.Random, data: bytes) -> bytes:
    """Up to four bits are others."""
    made = bytearray(data)
    for at in rng.sample(range(len(data) * 8), 1 << rng.randrange(3)):
        made[at // 8] ^= 1 << at % 8
    return bytes(made)
