"""A layer's attention: grouped queries, rotary positions, what came before handed in as a Past."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nodewire.llm.kv.alibi import slopes_of
from nodewire.llm.kv.attention_context import AttentionOptions, Past
from nodewire.llm.layers.norm import Norm, norm_of
from nodewire.llm.layers.rope import Angles, rotate
from nodewire.llm.quant.matrix import linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from nodewire.llm.spec.config import DecoderConfig


def how_of(config: DecoderConfig, layer: int, weights: Mapping[str, Any], device: torch.device) -> AttentionOptions:
    scale = 1 / math.sqrt(float(config.query_pre_attn_scalar or config.head_dim))
    return AttentionOptions(
        scale=scale,
        window=(config.sliding_window or 0) if config.slides(layer) else 0,
        softcap=float(config.attn_logit_softcapping or 0),
        sinks=weights.get("sinks"),
        alibi=slopes_of(config, scale, device),
    )


class Attention:
    """`layer` counts from the model's first, `place` from the stage's."""

    def __init__(
        self, config: DecoderConfig, layer: int, place: int, weights: Mapping[str, Any], device: torch.device
    ) -> None:
        self.place = place
        self.heads, self.turning = config.num_attention_heads, config.num_attention_heads + config.num_key_value_heads
        self.head_dim = config.head_dim
        self.how = how_of(config, layer, weights, device)
        self.clip = None if config.clip_qkv is None else float(config.clip_qkv)
        self.qkv, self.qkv_bias = weights["qkv"], weights.get("qkv_bias")
        self.o, self.o_bias = weights["o"], weights.get("o_bias")
        self.q_norm, self.k_norm = norm_of(config, weights, "q_norm"), norm_of(config, weights, "k_norm")
        self.norms_heads_at_once = config.qk_norm_of == "heads"

    def forward(self, x: Tensor, angles: Angles | None, past: Past) -> Tensor:
        """[n, width] in and out; without angles nothing turns."""
        qkv = linear(x, self.qkv, self.qkv_bias).view(len(x), -1, self.head_dim)
        if self.clip is not None:
            qkv.clamp_(-self.clip, self.clip)
        if self.q_norm is not None and self.k_norm is not None:
            q = self._normed(qkv[:, : self.heads], self.q_norm)
            k = self._normed(qkv[:, self.heads : self.turning], self.k_norm)
            if angles is not None:
                q, k = rotate(q, angles), rotate(k, angles)
        else:
            turned = qkv[:, : self.turning]
            turned = turned if angles is None else rotate(turned, angles)
            q, k = turned[:, : self.heads], turned[:, self.heads :]
        return linear(past.attend(self.place, q, k, qkv[:, self.turning :], self.how), self.o, self.o_bias)

    def _normed(self, x: Tensor, norm: Norm) -> Tensor:
        """`x` [n, heads, head_dim], each head alone or all at once."""
        return norm(x.flatten(1)).view(x.shape) if self.norms_heads_at_once else norm(x)
