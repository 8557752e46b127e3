"""Sentence encoders in BERT's layout, trained to tell a text's partner from the partners of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from nodewire.protocol.model.families import Encoder
    from nodewire.training.engine.families.weights import Batch, Weights


class EncoderModel:
    """A batch is two tensors of ids int64 [n, window], padded on the right: rows of one number belong together.

    The loss is the cross entropy of every first text over all second ones, by their cosine over the temperature
    (Henderson et al. 2017, arXiv 1705.00652).
    """

    def __init__(self, family: Encoder, weights: Weights) -> None:
        at = "embeddings"
        self._words = weights[f"{at}.word_embeddings.weight"]
        self._positions = weights[f"{at}.position_embeddings.weight"]
        self._types = weights[f"{at}.token_type_embeddings.weight"]
        self._norm = _Norm(weights, f"{at}.LayerNorm", float(family.norm_eps))
        self._layers = [_Layer(family, weights, f"encoder.layer.{i}") for i in range(family.layers)]
        self._pad, self._temperature = family.pad, float(family.temperature)

    def outputs(self, batch: Batch) -> Tensor:
        """Embeddings [2n, width] of length 1, the first texts' before the second ones'."""
        ids = torch.cat(batch)
        seen = ids != self._pad
        longest = max(1, int(seen.sum(1).max()))
        ids, seen = ids[:, :longest], seen[:, :longest]
        x = F.embedding(ids, self._words) + self._types[0] + self._positions[:longest]
        x = self._norm(x)
        mask = seen[:, None, None, :]
        for layer in self._layers:
            x = layer.forward(x, mask)
        weight = seen[..., None].to(x.dtype)
        pooled = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return F.normalize(pooled.float(), dim=1)

    def loss(self, batch: Batch) -> Tensor:
        return self.losses(batch).mean()

    def losses(self, batch: Batch) -> Tensor:
        first, second = self.outputs(batch).chunk(2)
        scores = first @ second.T / self._temperature
        return F.cross_entropy(scores, torch.arange(len(first)), reduction="none")


class _Norm:
    def __init__(self, weights: Weights, at: str, eps: float) -> None:
        self.weight, self.bias, self.eps = weights[f"{at}.weight"], weights[f"{at}.bias"], eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class _Layer:
    def __init__(self, family: Encoder, weights: Weights, at: str) -> None:
        self.q, self.k, self.v = (weights.matrix(f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        self.o = weights.matrix(f"{at}.attention.output.dense")
        self.up, self.down = weights.matrix(f"{at}.intermediate.dense"), weights.matrix(f"{at}.output.dense")
        self.attention_norm = _Norm(weights, f"{at}.attention.output.LayerNorm", float(family.norm_eps))
        self.mlp_norm = _Norm(weights, f"{at}.output.LayerNorm", float(family.norm_eps))
        self.heads = family.heads

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[n, longest, width] -> the same; mask bool [n, 1, 1, longest] says what may be attended to."""
        n, longest, _ = x.shape
        q, k, v = (of(x).view(n, longest, self.heads, -1).transpose(1, 2) for of in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.attention_norm(x + self.o(attended.transpose(1, 2).reshape(n, longest, -1)))
        return self.mlp_norm(x + self.down(F.gelu(self.up(x))))
