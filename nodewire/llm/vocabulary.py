"""The two ends of a decoder, which its driver holds: token ids to hidden states, hidden states to logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import family_of
from nodewire.llm.layers import Fill, rms_norm


class Vocabulary:
    """Embedding, final norm and head; the head is the embedding itself where the model ties them."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, fill: Fill) -> None:
        family = family_of(config)
        self.eps = float(config.rms_norm_eps)

        def weight(name: str, *shape: int) -> Tensor:
            tensor = torch.empty(shape, dtype=dtype, device=device)
            fill(name, tensor)
            return tensor

        self.embedding = weight(family.EMBEDDING, config.vocab_size, config.hidden_size)
        self.norm = weight(family.FINAL_NORM, config.hidden_size)
        tied = config.tie_word_embeddings
        self.head = self.embedding if tied else weight(family.HEAD, config.vocab_size, config.hidden_size)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] to hidden states [1, n, width]; the ids are in the vocabulary."""
        return F.embedding(ids.to(self.embedding.device), self.embedding)[None]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [1, 1, width] after the last layer to float32 [vocab]."""
        return F.linear(rms_norm(hidden, self.norm, self.eps), self.head)[0, 0].float()
