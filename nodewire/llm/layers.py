"""The Llama family's layers as plain functions over weights: RMSNorm, rotary embedding, attention, SwiGLU.

https://arxiv.org/abs/2302.13971 (Llama); grouped-query attention https://arxiv.org/abs/2305.13245. Written so that
every step is the one that Hugging Face's eager LlamaModel takes, in the same order, in the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from nodewire.llm.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights, each as `torch.nn.functional.linear` takes it ([out, in])."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    input_norm: torch.Tensor
    post_norm: torch.Tensor


_NAMES = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "input_norm": "input_layernorm.weight",
    "post_norm": "post_attention_layernorm.weight",
}


def layer_shapes(config: DecoderConfig, index: int) -> dict[str, tuple[int, ...]]:
    """The tensors of layer `index` under their Hugging Face names, with their shapes."""
    d, q, kv, ff = (
        config.hidden,
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
        config.intermediate,
    )
    shapes = {
        "q": (q, d),
        "k": (kv, d),
        "v": (kv, d),
        "o": (d, q),
        "gate": (ff, d),
        "up": (ff, d),
        "down": (d, ff),
        "input_norm": (d,),
        "post_norm": (d,),
    }
    return {f"model.layers.{index}.{_NAMES[part]}": shape for part, shape in shapes.items()}


def layer_of(weights: Mapping[str, torch.Tensor], index: int) -> Layer:
    return Layer(**{part: weights[f"model.layers.{index}.{name}"] for part, name in _NAMES.items()})


class Rotary:
    """cos and sin for every position of the context, [context, head_dim], computed once in fp32."""

    def __init__(self, config: DecoderConfig, positions: int, dtype: torch.dtype) -> None:
        half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        inverse = 1.0 / (float(config.rope_theta) ** half)
        angles = torch.outer(torch.arange(positions).float(), inverse)
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm with the mean in fp32, as Llama has it."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [heads, n, head_dim] with cos, sin [n, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def decode_layer(
    layer: Layer,
    config: DecoderConfig,
    x: torch.Tensor,
    rotary: Rotary,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
) -> torch.Tensor:
    """One layer over x [n, hidden] at positions start..start+n-1; writes its keys and values into the caches.

    `keys`, `values`: [kv_heads, context, head_dim], holding positions 0..start-1 already.
    """
    n = x.shape[0]
    end = start + n
    h = rms_norm(x, layer.input_norm, config.eps)
    cos, sin = rotary.cos[start:end], rotary.sin[start:end]
    q = F.linear(h, layer.q).view(n, config.heads, config.head_dim).transpose(0, 1)
    k = F.linear(h, layer.k).view(n, config.kv_heads, config.head_dim).transpose(0, 1)
    v = F.linear(h, layer.v).view(n, config.kv_heads, config.head_dim).transpose(0, 1)
    keys[:, start:end] = rotate(k, cos, sin)
    values[:, start:end] = v
    mask = None
    if n > 1:
        mask = torch.ones(n, end, dtype=torch.bool).tril(diagonal=start)
    attended = F.scaled_dot_product_attention(
        rotate(q, cos, sin)[None], keys[None, :, :end], values[None, :, :end], attn_mask=mask, enable_gqa=True
    )[0]
    x = x + F.linear(attended.transpose(0, 1).reshape(n, -1), layer.o)
    h = rms_norm(x, layer.post_norm, config.eps)
    return x + F.linear(F.silu(F.linear(h, layer.gate)) * F.linear(h, layer.up), layer.down)
