"""Meta's tokenizer.model as a tokenizer.json: Llama 3's list of byte pairs, Llama 2's sentencepiece model.

https://github.com/openai/tiktoken (lines of base64 and rank) and https://github.com/google/sentencepiece
(sentencepiece_model.proto, of which the pieces and the kind of model are read).
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from nodewire.errors import BadTask, TooLarge
from nodewire.llm.tokens.sentencepiece import MAX_CHARS, MAX_PIECES, NORMAL, MergeCount, Piece, tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
_SPECIALS = 256
_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")


def converted(data: bytes) -> tuple[bytes, list[int]]:
    """A tokenizer.json, and the ids that end a text.

    Raises:
        BadTask: neither of the two, or one of another kind than Llama's.
        TooLarge: over 2^24 characters in all tokens, or too many merges that they stand for.

    """
    tokenizer, ends = _of_sentencepiece(data) if data[:1] == b"\n" else _of_ranks(data)
    return tokenizer.to_str().encode(), ends


def _of_ranks(data: bytes) -> tuple[Tokenizer, list[int]]:
    ranks: dict[bytes, int] = {}
    for line in data.splitlines():
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise BadTask("tokenizer.model", "neither sentencepiece nor lines of base64 and rank") from None
        if len(ranks) > MAX_PIECES:
            raise BadTask("tokenizer.model", f"more than {MAX_PIECES} tokens")
    _check_size(ranks)
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise BadTask("tokenizer.model", "a byte has no rank")
    if sorted(ranks.values()) != list(range(len(ranks))) or max(map(len, ranks), default=0) > 512:
        raise BadTask("tokenizer.model", "its ranks leave gaps, or a token is too long")
    count = MergeCount("tokenizer.model")
    merges = [
        (left, right)
        for token in sorted(ranks, key=ranks.__getitem__)
        for left, right in sorted(_halves(token, ranks, count), key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    ]
    spelled = _spelling()
    tokenizer = Tokenizer(
        models.BPE(
            {token.decode("latin-1").translate(spelled): rank for token, rank in ranks.items()},
            [
                (left.decode("latin-1").translate(spelled), right.decode("latin-1").translate(spelled))
                for left, right in merges
            ],
            ignore_merges=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    reserved = (f"<|reserved_special_token_{2 + i}|>" for i in range(_SPECIALS - len(_SPECIAL)))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in (*_SPECIAL, *reserved)])
    _begins_with(tokenizer, _SPECIAL[0])
    return tokenizer, [len(ranks) + _SPECIAL.index(name) for name in _ENDS]


def _check_size(tokens: Iterable[str | bytes]) -> None:
    """Raises TooLarge."""
    if (size := sum(map(len, tokens))) > MAX_CHARS:
        raise TooLarge("tokenizer.model", f"{size} characters in all tokens, at most {MAX_CHARS}")


def _halves(token: bytes, ranks: dict[bytes, int], count: MergeCount) -> Iterator[tuple[bytes, bytes]]:
    for i in range(1, len(token)):
        if token[:i] in ranks and token[i:] in ranks:
            count.add(len(token))
            yield token[:i], token[i:]


def _spelling() -> dict[int, int]:
    """How byte-level tokenizers write bytes: those that print as they are, the others from U+0100 on."""
    printed = (*range(33, 127), *range(161, 173), *range(174, 256))
    others = (byte for byte in range(256) if byte not in printed)
    return {byte: 256 + i for i, byte in enumerate(others)}


def _begins_with(tokenizer: Tokenizer, name: str) -> None:
    first = [(name, tokenizer.token_to_id(name))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A {name} $B", special_tokens=first
    )


def _of_sentencepiece(data: bytes) -> tuple[Tokenizer, list[int]]:
    """A model of byte pairs, such as Llama 2's: of neighbours that make a piece, the best-scored are joined first."""
    pieces: list[Piece] = []
    kind = 1
    for number, value in _message(data):
        if number == 1 and isinstance(value, bytes):
            text, score, sort = "", 0.0, NORMAL
            for inner, part in _message(value):
                if inner == 1 and isinstance(part, bytes):
                    text = _text(part)
                elif inner == 2 and isinstance(part, bytes) and len(part) == 4:
                    score = float(struct.unpack("<f", part)[0])
                elif inner == 3 and isinstance(part, int):
                    sort = part
            pieces.append(Piece(text, score, sort))
        elif number == 2 and isinstance(value, bytes):
            kind = next((part for inner, part in _message(value) if inner == 3 and isinstance(part, int)), 1)
        if len(pieces) > MAX_PIECES:
            raise BadTask("tokenizer.model", f"more than {MAX_PIECES} pieces")
    if kind != 2:
        raise BadTask("tokenizer.model", "a sentencepiece model of another kind than byte pairs")
    _check_size(piece.text for piece in pieces)
    tokenizer = tokenizer_of(pieces, "tokenizer.model")
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if "<s>" in ids:
        _begins_with(tokenizer, "<s>")
    return tokenizer, [ids["</s>"]] if "</s>" in ids else []


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise BadTask("tokenizer.model", "a piece is no text") from None


def _message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers, or the bytes of everything else.

    https://protobuf.dev/programming-guides/encoding/
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise BadTask("tokenizer.model", "no sentencepiece model")
        if at + size > len(data):
            raise BadTask("tokenizer.model", "cut short")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise BadTask("tokenizer.model", "cut short")
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise BadTask("tokenizer.model", "no sentencepiece model")
