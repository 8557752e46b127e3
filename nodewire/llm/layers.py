"""A decoder's layers: RMSNorm, rotary positions, grouped attention over a cache, gated MLP.

Every caller runs the same operations in the same shapes (a prompt in blocks, then one position at a time), so that
the split model and the unsplit one agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.cache import Lanes
from nodewire.llm.config import DecoderConfig, RopeScaling
from nodewire.llm.families import layer_names

Fill = Callable[[str, Tensor], None]
"""Copies the tensor of that checkpoint name into the given one (see nodewire.llm.loader)."""


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Radians per position of each pair of a head's dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    frequencies = 1.0 / float(config.rope_theta) ** exponents
    return frequencies if config.rope_scaling is None else _stretched(frequencies, config.rope_scaling)


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3: long wavelengths slowed by `factor`, short ones kept, those between interpolated."""
    low, high = float(scaling.low_freq_factor), float(scaling.high_freq_factor)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / float(scaling.factor) + kept * frequencies


class Rope:
    """Rotary position tables, float32 [positions, 1, head_dim / 2]."""

    def __init__(self, config: DecoderConfig, positions: int, device: torch.device) -> None:
        angles = torch.arange(positions).float()[:, None] * inverse_frequencies(config)
        self.cos = angles.cos()[:, None].to(device)
        self.sin = angles.sin()[:, None].to(device)

    def rotate(self, x: Tensor, pos: int) -> Tensor:
        """`x` [n, heads, head_dim] turned by the angles of positions pos .. pos+n-1; its dtype."""
        cos, sin = self.cos[pos : pos + len(x)], self.sin[pos : pos + len(x)]
        low, high = x.float().chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


class Layer:
    """One transformer layer; weights in `dtype`, the projections of one input stacked into one matrix."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: torch.dtype, device: torch.device, fill: Fill) -> None:
        names = layer_names(config, layer)
        width, inner = config.hidden_size, config.intermediate_size
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.eps = float(config.rms_norm_eps)

        def weight(columns: int | None, *parts: tuple[str, int]) -> Tensor:
            """One matrix of the parts' rows, stacked; a vector without `columns`."""
            total = sum(rows for _, rows in parts)
            matrix = torch.empty((total,) if columns is None else (total, columns), dtype=dtype, device=device)
            at = 0
            for name, rows in parts:
                fill(name, matrix[at : at + rows])
                at += rows
            return matrix

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.attention_norm = weight(None, (names.attention_norm, width))
        self.qkv = weight(width, (names.q, queries), (names.k, keys), (names.v, keys))
        self.o = weight(queries, (names.o, width))
        self.mlp_norm = weight(None, (names.mlp_norm, width))
        self.gate_up = weight(width, (names.gate, inner), (names.up, inner))
        self.down = weight(inner, (names.down, width))

    def forward(self, x: Tensor, pos: int, rope: Rope, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Hidden states [1, n, width] of positions pos .. pos+n-1 after this layer.

        `keys` and `values` [kv_heads, positions, head_dim] are a lane: read up to `pos`, written from there on.
        `mask` bool [n, pos+n] says what each position attends to; None for one position, or for a block at pos 0.
        """
        n = x.shape[1]
        end = pos + n
        qkv = F.linear(rms_norm(x, self.attention_norm, self.eps), self.qkv).view(n, -1, self.head_dim)
        turned = rope.rotate(qkv[:, : self.heads + self.kv_heads], pos)
        keys[:, pos:end] = turned[:, self.heads :].transpose(0, 1)
        values[:, pos:end] = qkv[:, self.heads + self.kv_heads :].transpose(0, 1)
        k, v = keys[None, :, :end], values[None, :, :end]
        if n == 1:
            # All of one position's queries see the same keys: a group's queries are the rows of one attention.
            q = turned[:, : self.heads].view(1, self.kv_heads, -1, self.head_dim)
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            q = turned[:, : self.heads].transpose(0, 1)[None]
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads
            ).transpose(1, 2)
        x = x + F.linear(attended.reshape(1, n, -1), self.o)
        gate, up = F.linear(rms_norm(x, self.mlp_norm, self.eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate).mul_(up), self.down)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


class Layers:
    """Layers [first, last) of a decoder, run in blocks of `block` positions so that long prompts need no more memory.

    Lanes (the KV caches) are handed in, so that the same weights serve many sessions.
    """

    def __init__(
        self,
        config: DecoderConfig,
        first: int,
        last: int,
        *,
        positions: int,
        block: int,
        dtype: torch.dtype,
        device: torch.device,
        fill: Fill,
    ) -> None:
        self.block = block
        self.device = device
        self.layers = [Layer(config, layer, dtype, device, fill) for layer in range(first, last)]
        self.rope = Rope(config, positions, device)

    def forward(self, hidden: Tensor, pos: int, lanes: Lanes, lane: int, *, only_last: bool) -> Tensor:
        """[1, n, width] in, [1, n, width] out ([1, 1, width], the last position's, with `only_last`).

        Positions pos .. pos+n-1 of the lane are written; the input is left as it is.
        """
        n = hidden.shape[1]
        output = hidden.new_empty(1, 1 if only_last else n, hidden.shape[2])
        for start in range(0, n, self.block):
            x = hidden[:, start : start + self.block]
            mask = self._mask(pos + start, x.shape[1])
            for layer, keys, values in zip(self.layers, lanes.keys, lanes.values, strict=True):
                x = layer.forward(x, pos + start, self.rope, keys[lane], values[lane], mask)
            if not only_last:
                output[:, start : start + self.block] = x
        return x[:, -1:].clone() if only_last else output

    def _mask(self, pos: int, n: int) -> Tensor | None:
        if n == 1 or pos == 0:
            return None
        return torch.ones(n, pos + n, dtype=torch.bool, device=self.device).tril_(pos)
