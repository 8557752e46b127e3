"""The reference: a sentence encoder in one process, as its authors run it, without tracing, cutting or interpreting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadInput
from nodewire.graph.encoder import padded, tokenizer
from nodewire.graph.families import bert, encoder_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ROWS = 32


def embed(directory: Path, texts: Sequence[str]) -> torch.Tensor:
    """Sentence embeddings, float32 [len(texts), h], in the texts' order.

    Raises:
        NotFound, BadInput: the directory is not a sentence encoder of a supported family, or `texts` is empty.
        BadConfig: `transformers` is not installed.

    """
    if not texts:
        raise BadInput("texts", "none")
    said = encoder_directory.read(directory)
    model = bert.loaded(said)
    words = tokenizer(said.tokenizer, said.positions)
    vectors: list[torch.Tensor] = []
    for first in range(0, len(texts), _ROWS):
        ids = [words.encode(text).ids for text in texts[first : first + _ROWS]]
        tensors = padded(ids, said.pad_id)
        with torch.no_grad():
            hidden = model(**tensors).last_hidden_state
        vectors.append(bert.pool(hidden, tensors[bert.MASK], said.pooling, said.normalized))
    return torch.cat(vectors)
