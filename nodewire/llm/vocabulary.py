"""The two ends of a decoder, which its driver holds: token ids to hidden states, hidden states to logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import driver_pieces
from nodewire.llm.loader import Fill, load
from nodewire.llm.norm import rms_norm
from nodewire.llm.parameters import of_driver


class Vocabulary:
    """Embedding, final norm and head; the head is the embedding itself where the model ties them."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, fill: Fill) -> None:
        weights = load(of_driver(config), driver_pieces(config), fill, dtype, device)
        self.embedding, self.norm = weights["embedding"], weights["norm"]
        self.head = weights.get("head", self.embedding)
        self.eps = float(config.rms_norm_eps)
        self.scale = None if config.embedding_scale is None else float(config.embedding_scale)
        self.softcap = None if config.final_logit_softcapping is None else float(config.final_logit_softcapping)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] to hidden states [1, n, width]; the ids are in the vocabulary."""
        found = F.embedding(ids.to(self.embedding.device), self.embedding)[None]
        return found if self.scale is None else found.mul_(self.scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [1, 1, width] after the last layer to float32 [vocab]."""
        found = F.linear(rms_norm(hidden, self.norm, self.eps), self.head)[0, 0].float()
        return found if self.softcap is None else found.div_(self.softcap).tanh_().mul_(self.softcap)
