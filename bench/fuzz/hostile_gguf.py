"""GGUF files whose headers lie, made by seeded choices: what bench.fuzz.fuzz_gguf has nodewire read."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench.fuzz import mutations
from nodewire.gguf.types import OTHERS, TYPES

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
_FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
ALIGNMENT = 32
WIDTH, INNER, HEAD, TOKENS = 32, 64, 16, 300


@dataclass(frozen=True)
class Tensor:
    """`shape` as the file has it, the length of a row first; `offset` is that which fits unless one is given."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes = b""
    offset: int | None = None
    dimensions: int | None = None


@dataclass(frozen=True)
class File:
    """`metadata`: key, type, value; of arrays the value is their elements' type and they."""

    metadata: tuple[tuple[str, int, Any], ...]
    tensors: tuple[Tensor, ...]
    magic: bytes = b"GGUF"
    version: int = 3
    counts: tuple[int | None, int | None] = (None, None)
    """Of tensors and of keys, where they are not told truly."""
    tail: bytes = b""
    lengths: dict[str, int] = field(default_factory=dict)
    """Of a text or an array, by key, where it is not told truly."""

    def encode(self) -> bytes:
        said = [own if own is not None else true for own, true in
                zip(self.counts, (len(self.tensors), len(self.metadata)), strict=True)]  # fmt: skip
        out = bytearray(
            self.magic + struct.pack("<IQQ", self.version & 0xFFFFFFFF, *(one & (2**64 - 1) for one in said))
        )
        for key, kind, value in self.metadata:
            out += _text(key) + struct.pack("<I", kind & 0xFFFFFFFF) + _value(kind, value, self.lengths.get(key))
        at, places = 0, []
        for tensor in self.tensors:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            places.append(at)
            offset = at if tensor.offset is None else tensor.offset
            count = len(tensor.shape) if tensor.dimensions is None else tensor.dimensions
            out += _text(tensor.name) + struct.pack("<I", count & 0xFFFFFFFF)
            out += b"".join(struct.pack("<Q", one & (2**64 - 1)) for one in tensor.shape)
            out += struct.pack("<IQ", tensor.type & 0xFFFFFFFF, offset & (2**64 - 1))
            at += len(tensor.data)
        out += bytes(-len(out) % ALIGNMENT)
        first = len(out)
        for place, tensor in zip(places, self.tensors, strict=True):
            out += bytes(first + place - len(out)) + tensor.data
        return bytes(out) + self.tail

    def saying(self, key: str, kind: int, value: Any) -> File:
        """The same with a key's value changed, or one more key."""
        rest = tuple(one for one in self.metadata if one[0] != key)
        return replace(self, metadata=(*rest, (key, kind, value)))

    def without(self, key: str) -> File:
        return replace(self, metadata=tuple(one for one in self.metadata if one[0] != key))

    def having(self, called: str, /, **changes: Any) -> File:
        """The same with a tensor changed."""
        made = tuple(replace(one, **changes) if one.name == called else one for one in self.tensors)
        return replace(self, tensors=made)


def _text(text: str | bytes, length: int | None = None) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", (len(data) if length is None else length) & (2**64 - 1)) + data


def _value(kind: int, value: Any, length: int | None = None) -> bytes:
    if kind == TEXT:
        return _text(value, length)
    if kind == ARRAY:
        inner, elements = value
        head = struct.pack("<IQ", inner & 0xFFFFFFFF, (len(elements) if length is None else length) & (2**64 - 1))
        return head + b"".join(_value(inner, one) for one in elements)
    if kind not in _FORMS:
        return bytes(8)
    if kind in (F32, F64):
        return struct.pack(f"<{_FORMS[kind]}", value)
    size = struct.calcsize(_FORMS[kind])
    return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _matrix(rng: np.random.Generator, name: str, width: int, rows: int, kind: str = "F32") -> Tensor:
    number = next(n for n, one in TYPES.items() if one.name == kind)
    numbers = rng.standard_normal((rows, width)).astype(np.float32)
    if kind == "F32":
        return Tensor(name, (width, rows), number, numbers.tobytes())
    if kind == "F16":
        return Tensor(name, (width, rows), number, numbers.astype(np.float16).tobytes())
    blocks = rng.integers(0, 256, (rows * width // 32, TYPES[number].nbytes), dtype=np.uint8)
    blocks[:, :2] = np.full((len(blocks), 1), 0.01, np.float16).view(np.uint8)
    return Tensor(name, (width, rows), number, blocks.tobytes())


def small() -> File:
    """A Llama of one layer over a byte-level vocabulary, well-formed."""
    rng = np.random.default_rng(5)
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in printed}
    spelled |= {byte: chr(256 + n) for n, byte in enumerate(one for one in range(256) if one not in printed)}
    letters = [spelled[byte] for byte in range(256)]
    pairs = [(a, b) for a in "etao" for b in "nirshld"]
    tokens = ["<s>", "</s>", *letters, *("".join(pair) for pair in pairs)]
    tokens += [f"[PAD{n}]" for n in range(TOKENS - len(tokens))]
    kinds = [3, 3] + [1] * (256 + len(pairs)) + [5] * (TOKENS - 258 - len(pairs))
    metadata: list[tuple[str, int, Any]] = [
        ("general.architecture", TEXT, "llama"),
        ("general.name", TEXT, "small"),
        ("general.alignment", U32, ALIGNMENT),
        ("llama.block_count", U32, 1),
        ("llama.context_length", U32, 64),
        ("llama.embedding_length", U32, WIDTH),
        ("llama.feed_forward_length", U32, INNER),
        ("llama.attention.head_count", U32, WIDTH // HEAD),
        ("llama.attention.head_count_kv", U32, 1),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.freq_base", F32, 10_000.0),
        ("llama.rope.dimension_count", U32, HEAD),
        ("llama.vocab_size", U32, TOKENS),
        ("tokenizer.ggml.model", TEXT, "gpt2"),
        ("tokenizer.ggml.pre", TEXT, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (TEXT, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.merges", ARRAY, (TEXT, [" ".join(pair) for pair in pairs])),
        ("tokenizer.ggml.bos_token_id", U32, 0),
        ("tokenizer.ggml.eos_token_id", U32, 1),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.chat_template", TEXT, "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    ]
    at = "blk.0"
    tensors = [
        _matrix(rng, "token_embd.weight", WIDTH, TOKENS),
        _matrix(rng, f"{at}.attn_q.weight", WIDTH, WIDTH, "Q8_0"),
        _matrix(rng, f"{at}.attn_k.weight", WIDTH, HEAD, "Q8_0"),
        _matrix(rng, f"{at}.attn_v.weight", WIDTH, HEAD, "Q8_0"),
        _matrix(rng, f"{at}.attn_output.weight", WIDTH, WIDTH, "Q4_0"),
        _matrix(rng, f"{at}.ffn_gate.weight", WIDTH, INNER, "F16"),
        _matrix(rng, f"{at}.ffn_up.weight", WIDTH, INNER, "Q4_1"),
        _matrix(rng, f"{at}.ffn_down.weight", INNER, WIDTH, "Q5_0"),
    ]
    norms = [f"{at}.attn_norm.weight", f"{at}.ffn_norm.weight", "output_norm.weight"]
    tensors += [Tensor(name, (WIDTH,), 0, np.ones(WIDTH, np.float32).tobytes()) for name in norms]
    return File(tuple(metadata), tuple(tensors))


NUMBERS = (*mutations.NUMBERS, 3, 4, 8, 31, 33, 255, 256, 2**20, 2**20 + 1, 2**40, 2**62)
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"), 1.0, 8.0)


def header(rng: random.Random, file: File) -> bytes:
    """Counts, lengths, versions and places that are not what they are said to be."""
    match rng.randrange(8):
        case 0:
            file = replace(file, magic=rng.choice((b"GGML", b"FUGG", b"", b"GGU", b"\0\0\0\0")))
        case 1:
            file = replace(file, version=rng.choice((0, 1, 2, 4, 2**24, 3 * 2**24, 2**32 - 1)))
        case 2:
            file = replace(file, counts=(rng.choice((*NUMBERS, len(file.tensors) + 1)), None))
        case 3:
            file = replace(file, counts=(None, rng.choice((*NUMBERS, len(file.metadata) + 1))))
        case 4:
            key = rng.choice([one[0] for one in file.metadata if one[1] in (TEXT, ARRAY)])
            file = replace(file, lengths={key: rng.choice(NUMBERS)})
        case 5:
            file = file.saying("general.alignment", U32, rng.choice(NUMBERS))
        case 6:
            return file.encode()[: rng.randrange(4_000)]
        case 7:
            return file.encode()[: -rng.randrange(1, 40_000)]
    return file.encode()


def metadata(rng: random.Random, file: File) -> bytes:
    """Keys that are gone, stand twice, are others', or have another value or type."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        key, kind, value = rng.choice(file.metadata)
        match rng.randrange(7):
            case 0:
                file = file.without(key)
            case 1:
                file = replace(file, metadata=(*file.metadata, (key, kind, value)))
            case 2:
                more = rng.choice(
                    ("expert_count", "attention.sliding_window", "rope.scaling.type", "logit_scale", "ssm")
                )
                file = file.saying(f"llama.{more}", U32, rng.choice(NUMBERS))
            case 3 if kind in (U32, F32, BOOL):
                file = file.saying(key, kind, rng.choice(FLOATS if kind == F32 else NUMBERS))
            case 4:
                other = rng.choice((U8, I8, U16, I32, U64, I64, BOOL))
                file = file.saying(key, other, rng.choice(NUMBERS))
            case 5:
                file = file.saying(
                    key, TEXT, rng.choice((*mutations.TEXTS, "gemma3", "qwen2moe", "gpt-oss", "llama-bpe"))
                )
            case 6:
                inner = rng.choice((U8, I32, F32, TEXT, BOOL, ARRAY, 13, 99))
                file = file.saying(key, ARRAY, (inner, _elements(rng, inner)))
    return file.encode()


def _elements(rng: random.Random, inner: int) -> list[Any]:
    count = rng.choice((0, 1, 2, TOKENS, 5_000))
    if inner == TEXT:
        return [rng.choice(mutations.TEXTS) for _ in range(count)]
    if inner == ARRAY:
        return [(U8, [1, 2])] * min(count, 8)
    return [rng.choice(FLOATS if inner == F32 else NUMBERS) for _ in range(count)]


def tensors(rng: random.Random, file: File) -> bytes:
    """Tensors of other shapes, types, names and places than they have."""
    for _ in range(rng.choice((1, 1, 2))):
        one = rng.choice(file.tensors)
        match rng.randrange(7):
            case 0:
                shape = list(one.shape)
                shape[rng.randrange(len(shape))] = rng.choice(NUMBERS)
                file = file.having(one.name, shape=tuple(shape))
            case 1:
                file = file.having(one.name, type=rng.choice((*TYPES, *OTHERS, 4, 5, 36, 99, 2**32 - 1)))
            case 2:
                file = file.having(one.name, offset=rng.choice((*NUMBERS, 32, 64, 96, 4_096)))
            case 3:
                file = file.having(one.name, name=rng.choice((*mutations.TEXTS, rng.choice(file.tensors).name)))
            case 4:
                file = file.having(one.name, dimensions=rng.choice(NUMBERS))
            case 5:
                file = replace(file, tensors=tuple(other for other in file.tensors if other is not one))
            case 6:
                names = (
                    "output.weight",
                    "rope_freqs.weight",
                    "blk.0.attn_q.bias",
                    "blk.1.attn_q.weight",
                    "v.patch_embd",
                )
                more = _matrix(
                    np.random.default_rng(1), rng.choice(names), rng.choice((8, 32)), rng.choice((1, TOKENS))
                )
                file = replace(file, tensors=(*file.tensors, more))
    return file.encode()


def tokenizers(rng: random.Random, file: File) -> bytes:
    """Tokens, merges, scores and kinds that do not fit together, and templates."""
    said = {key: value for key, _, value in file.metadata}
    tokens, merges = list(said["tokenizer.ggml.tokens"][1]), list(said["tokenizer.ggml.merges"][1])
    match rng.randrange(8):
        case 0:
            tokens[rng.randrange(len(tokens))] = rng.choice((*mutations.TEXTS, tokens[7], "x" * 513, "y" * 70_000))
        case 1:
            tokens = tokens[: rng.randrange(len(tokens))] if rng.random() < 0.5 else [*tokens, "one more"]
        case 2:
            merges[rng.randrange(len(merges))] = rng.choice((*mutations.TEXTS, "a b c", "e  n", "zz q", "e n"))
        case 3:
            kinds = [rng.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, 2**31 - 1)) for _ in tokens]
            file = file.saying("tokenizer.ggml.token_type", ARRAY, (I32, kinds))
        case 4:
            scores = (
                [rng.choice(FLOATS) for _ in tokens] if rng.random() < 0.5 else [float(-n) for n in range(len(tokens))]
            )
            file = file.saying("tokenizer.ggml.scores", ARRAY, (F32, scores)).saying(
                "tokenizer.ggml.model", TEXT, "llama"
            )
        case 5:
            for name in ("bos", "eos", "eot", "unknown", "padding"):
                file = file.saying(
                    f"tokenizer.ggml.{name}_token_id", U32, rng.choice((0, 1, TOKENS - 1, TOKENS, 2**32 - 1))
                )
        case 6:
            file = file.saying(
                "tokenizer.ggml.pre", TEXT, rng.choice(("llama-bpe", "qwen2", "gpt-4o", "tekken", "x" * 99))
            )
        case 7:
            template = rng.choice(("{{ x" * 9, "{% for a in b %}", "x" * 70_000, "{{ ''.__class__.__mro__ }}", "\0"))
            file = file.saying("tokenizer.chat_template", TEXT, template)
    file = file.saying("tokenizer.ggml.tokens", ARRAY, (TEXT, tokens))
    return file.saying("tokenizer.ggml.merges", ARRAY, (TEXT, merges)).encode()
