"""Multi-head latent attention (MLA), https://arxiv.org/abs/2405.04434, over latents as they are kept.

Of a position one row is kept, which all heads share: the key that turns, then the latent. A head's other keys and its
values are matrices times the latent, so its query is multiplied with the one, and what it attended to with the other:
what is kept is the keys and the values of one head, and nothing is widened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nodewire.llm.layers.attention import how_of
from nodewire.llm.layers.norm import rms_norm
from nodewire.llm.layers.rope import Angles, rotate
from nodewire.llm.quant.matrix import linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.llm.kv.attention_context import Past
    from nodewire.llm.spec.config import DecoderConfig, Latent

_EPS = 1e-6
"""Of the latents' norms, whatever the model's others have."""


class LatentAttention:
    """`layer` counts from the model's first, `place` from the stage's."""

    def __init__(
        self,
        config: DecoderConfig,
        latent: Latent,
        layer: int,
        place: int,
        weights: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        self.place, self.how = place, how_of(config, layer, weights, device)
        self.turning, self.still, self.interleaved = (
            latent.qk_rope_head_dim,
            latent.qk_nope_head_dim,
            latent.interleaved,
        )
        self.heads, self.kept = config.num_attention_heads, config.head_dim
        self.qkv, self.o = weights["qkv"], weights["o"]
        self.q_a_norm, self.q_b = weights.get("q_a_norm"), weights.get("q_b")
        self.kv_a_norm: Tensor = weights["kv_a_norm"]
        widened = weights["kv_b"].view(self.heads, -1, latent.kv_lora_rank)
        self.keys: Tensor = widened[:, : self.still]
        self.values: Tensor = widened[:, self.still :]

    def forward(self, x: Tensor, angles: Angles | None, past: Past) -> Tensor:
        """[n, width] in and out; without angles nothing turns."""
        both = linear(x, self.qkv, None)
        q, kept = both[:, : -self.kept], both[:, -self.kept :]
        if self.q_b is not None and self.q_a_norm is not None:
            q = linear(rms_norm(q, self.q_a_norm, _EPS), self.q_b, None)
        latent, key = kept[:, : -self.turning], kept[:, -self.turning :]
        q = q.view(len(x), self.heads, -1)
        still, turning = q[..., : self.still], q[..., self.still :]
        own = torch.cat((self._turned(key[:, None], angles), rms_norm(latent, self.kv_a_norm, _EPS)[:, None]), 2)
        asked = torch.bmm(still.transpose(0, 1), self.keys).transpose(0, 1)
        found = past.attend(self.place, torch.cat((self._turned(turning, angles), asked), 2), own, own, self.how)
        found = found.view(len(x), self.heads, self.kept)[..., self.turning :]
        made = torch.bmm(found.transpose(0, 1), self.values.transpose(1, 2)).transpose(0, 1)
        return linear(made.reshape(len(x), -1), self.o, None)

    def _turned(self, x: Tensor, angles: Angles | None) -> Tensor:
        """`x` [n, heads, turning], of each pair of dimensions the first in one half, the second in the other."""
        if self.interleaved:
            x = x.view(*x.shape[:2], -1, 2).transpose(2, 3).flatten(2)
        return x if angles is None else rotate(x, angles)
