"""Tokenizers for decoders that start from nothing: bytes as they are, or byte-level BPE learned from texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nodewire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable

END = "<|endoftext|>"
"""The token of id 0 of a learned vocabulary: it stands between texts and ends a generation."""


def of_bytes() -> bytes:
    """A tokenizer.json whose ids are bytes."""
    # Byte-level BPE writes every byte as a printable character; those that are none get 256, 257 ... in turn.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    vocabulary, stand_in = {}, 256
    for byte in range(256):
        if byte in printable:
            vocabulary[chr(byte)] = byte
        else:
            vocabulary[chr(stand_in)] = byte
            stand_in += 1
    return _byte_level(Tokenizer(models.BPE(vocabulary, []))).to_str().encode()


def learned(texts: Iterable[str], size: int) -> bytes:
    """A tokenizer.json of at most `size` tokens, learned from texts: equal texts in equal order give equal bytes.

    Raises:
        BadInput: a size that does not hold all bytes and `END`.

    """
    if not 257 <= size <= 2**20:
        raise BadInput("vocabulary", f"{size}, not from 257 to {2**20}")
    tokenizer = _byte_level(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def size_of(tokenizer: bytes) -> int:
    """How many ids a tokenizer.json has."""
    return int(Tokenizer.from_str(tokenizer.decode()).get_vocab_size())


def _byte_level(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
