"""Byte pairs as sentencepiece has them, by scores in place of a list of merges, as a tokenizer.

https://github.com/google/sentencepiece: of neighbours that make a piece, the best-scored are joined first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from nodewire.errors import BadTask, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PIECES = 2**20
MAX_PIECE_CHARS = 512
MAX_CHARS = 2**24
"""In all tokens: at each of them a token may be two others put together."""
MAX_MERGES, MAX_MERGE_CHARS = 2**20, 2**24
"""Ways to put a token together of two others, and the characters of what they make: Gemma 3 has half as many."""
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""What a piece is (sentencepiece_model.proto). `USER` pieces are found whole in a text, before all else."""
_SPACE = "\u2581"


class MergeCount:
    """Counts merges as they are found: of tokens that are all each other's parts each has hundreds."""

    def __init__(self, field: str) -> None:
        self._field, self._merges, self._chars = field, 0, 0

    def add(self, length: int) -> None:
        """One more, that makes a token of so many characters. Raises TooLarge: they are over their bounds."""
        self._merges, self._chars = self._merges + 1, self._chars + length
        if self._merges > MAX_MERGES or self._chars > MAX_MERGE_CHARS:
            raise TooLarge(
                self._field,
                f"its tokens are over {MAX_MERGES} pairs of others, or such pairs have over {MAX_MERGE_CHARS} "
                "characters: take the model's own tokenizer",
            )


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


def tokenizer_of(pieces: Sequence[Piece], field: str, *, has_prefix: bool = True) -> Tokenizer:
    """The tokenizer of these pieces, by id; nothing is put before a text, or after it.

    `has_prefix`: a text is read as if it began with a space.

    Raises:
        BadTask: a piece stands twice, or is too long, or a score is no number; it is `field` that is at fault.
        TooLarge: there are too many ways to put pieces together.

    """
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if not all(math.isfinite(piece.score) for piece in pieces):
        raise BadTask(field, "a score is not finite")
    if len(ids) != len(pieces) or max(map(len, ids), default=0) > MAX_PIECE_CHARS:
        raise BadTask(field, "a piece stands twice, is no text or too long")
    merges, count = [], MergeCount(field)
    for i, piece in enumerate(pieces):
        if piece.kind != NORMAL:
            continue
        for cut in range(1, len(piece.text)):
            left, right = ids.get(piece.text[:cut]), ids.get(piece.text[cut:])
            if left is not None and right is not None:
                count.add(len(piece.text))
                merges.append((-piece.score, left, right, i))
    merges.sort()
    unknown = next((piece.text for piece in pieces if piece.kind == UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            [(pieces[left].text, pieces[right].text) for _, left, right, _ in merges],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=any(piece.kind == BYTE for piece in pieces),
        )
    )
    spaced = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaced]) if has_prefix else spaced
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if has_prefix else parts)
    special = [piece.text for piece in pieces if piece.kind in (UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(piece.text, normalized=False) for piece in pieces if piece.kind == USER])
    return tokenizer
