"""Decoders in Llama's layout, whole windows at a time; serving them a position at a time is `nodewire.llm`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from nodewire.protocol.model.families import Decoder
    from nodewire.training.engine.families.weights import Batch, Weights


class DecoderModel:
    """A batch is ids int64 [n, window + 1]: every position but the last predicts the one after it."""

    def __init__(self, family: Decoder, weights: Weights, window: int) -> None:
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [_Layer(family, weights, f"model.layers.{i}") for i in range(family.layers)]
        self._norm, self._eps = weights["model.norm.weight"], float(family.norm_eps)
        self._head = self._embedding if family.tied else weights["lm_head.weight"]
        angles = torch.arange(window).float()[:, None] * _frequencies(family)
        self._cos, self._sin = angles.cos(), angles.sin()

    def outputs(self, batch: Batch) -> Tensor:
        """Logits [n, window, vocabulary]."""
        x = F.embedding(batch[0][:, :-1], self._embedding)
        cos, sin = self._cos[: x.shape[1]], self._sin[: x.shape[1]]
        for layer in self._layers:
            x = layer.forward(x, cos, sin)
        return F.linear(F.rms_norm(x, self._norm.shape, self._norm, self._eps), self._head)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.outputs(batch).float().flatten(0, 1), batch[0][:, 1:].flatten())

    def losses(self, batch: Batch) -> Tensor:
        each = F.cross_entropy(self.outputs(batch).float().flatten(0, 1), batch[0][:, 1:].flatten(), reduction="none")
        return each.view(len(batch[0]), -1).mean(1)


class _Layer:
    def __init__(self, family: Decoder, weights: Weights, at: str) -> None:
        self.q, self.k, self.v, self.o = (weights.matrix(f"{at}.self_attn.{name}_proj") for name in "qkvo")
        self.gate, self.up, self.down = (weights.matrix(f"{at}.mlp.{name}_proj") for name in ("gate", "up", "down"))
        self.attention_norm = weights[f"{at}.input_layernorm.weight"]
        self.mlp_norm = weights[f"{at}.post_attention_layernorm.weight"]
        self.head_dim, self.eps = family.head_dim, float(family.norm_eps)
        self.group = family.heads // family.kv_heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[n, window, width] -> the same; cos and sin [window, head_dim / 2]."""
        n, window, _ = x.shape
        h = F.rms_norm(x, self.attention_norm.shape, self.attention_norm, self.eps)
        q, k, v = (of(h).view(n, window, -1, self.head_dim).transpose(1, 2) for of in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if self.group > 1:
            k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(n, window, -1))
        h = F.rms_norm(x, self.mlp_norm.shape, self.mlp_norm, self.eps)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def _frequencies(family: Decoder) -> Tensor:
    """Radians per position, float32 [head_dim / 2]; Llama 3 slows its long wavelengths."""
    frequencies = 1.0 / float(family.rope_theta) ** (torch.arange(0, family.head_dim, 2).float() / family.head_dim)
    scaling = family.rope_scaling
    if scaling is None:
        return frequencies
    low, high = float(scaling.low_freq_factor), float(scaling.high_freq_factor)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / float(scaling.factor) + kept * frequencies
