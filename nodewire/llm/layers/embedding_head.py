"""The two ends of a decoder: token ids to hidden states, hidden states to logits.

A driver has both, or lends them to the first and the last stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.checkpoint.loader import Fill, load
from nodewire.llm.families import end_pieces
from nodewire.llm.layers.frame_checks import check_finite
from nodewire.llm.layers.norm import norm_of
from nodewire.llm.programs.memory_estimate import HEAD_ROWS
from nodewire.llm.quant.row_product import Row, choose
from nodewire.llm.spec.parameters import BOTH, Ends, of_ends

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig


class Vocabulary:
    """Embedding, final norm and head, as far as they are here.

    The head is the embedding itself where the model ties them.
    """

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, fill: Fill, ends: Ends = BOTH
    ) -> None:
        self.weights = load(of_ends(config, ends), end_pieces(config), fill, dtype, device)
        self._head = "embedding" if config.tie_word_embeddings else "head"
        self.row = Row(self.weights[self._head]) if self._head in self.weights and ends.head else None
        """The head, of a single row."""
        choose([self.row] if self.row is not None else [])
        self.norm = norm_of(config, self.weights, "norm")
        self.logit_scale = None if config.logit_scale is None else float(config.logit_scale)
        self.scale = None if config.embedding_scale is None else float(config.embedding_scale)
        self.softcap = None if config.final_logit_softcapping is None else float(config.final_logit_softcapping)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] to hidden states [1, n, width]; the ids are in the vocabulary."""
        table = self.weights["embedding"]
        found = F.embedding(ids.to(table.device), table)[None]
        return found if self.scale is None else found.mul_(self.scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [1, 1, width] after the last layer to float32 [vocab]."""
        return self.every_logits(hidden)[0, 0]

    def likeliest(self, hidden: Tensor) -> Tensor:
        """Hidden states [1, n, width] after the last layer to the ids with the largest logits, int64 [n].

        Of equals it is the first.

        Raises BadFrame: logits that are not finite.
        """
        found = torch.empty(hidden.shape[1], dtype=torch.int64)
        for at in range(0, len(found), HEAD_ROWS):
            logits = self.every_logits(hidden[:, at : at + HEAD_ROWS])[0]
            check_finite(logits)
            found[at : at + HEAD_ROWS] = logits.argmax(dim=1)
        return found

    def every_logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [1, n, width] after the last layer to float32 [1, n, vocab]."""
        assert self.norm is not None and self.row is not None
        normed = self.norm(hidden)
        found = (self.row.times(normed[0])[None] if hidden.shape[1] == 1 else F.linear(normed, self.row.matrix)).float()
        if self.logit_scale is not None:
            found.mul_(self.logit_scale)
        return found if self.softcap is None else found.div_(self.softcap).tanh_().mul_(self.softcap)
