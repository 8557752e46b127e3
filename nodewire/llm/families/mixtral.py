"""Mixtral: Mistral's attention, and in every layer a mixture whose chosen experts' weights add up to one."""

from __future__ import annotations

from typing import Any

from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import naming
from nodewire.llm.families.fields import Fields
from nodewire.llm.families.mistral import windowed
from nodewire.llm.families.sizes import sizes

ARCHITECTURE = "MixtralForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    found = windowed(fields, sizes(fields, eps=1e-5, theta=1_000_000.0), None)
    return found | {
        "experts": {
            "num_experts": fields.either("num_local_experts", "num_experts", 8),
            "num_experts_per_tok": fields.integer("num_experts_per_tok", 2),
            "moe_intermediate_size": found["intermediate_size"],
            "norm_topk_prob": True,
        }
    }


def pieces(config: DecoderConfig, layer: int) -> naming.Pieces:
    at = f"model.layers.{layer}"
    mixture = config.experts_of(layer)
    if mixture is None:
        return naming.of_layer(config, layer)
    rest = naming.norms(config, at) | naming.attention(config, f"{at}.self_attn")
    return rest | naming.experts(config, mixture, f"{at}.block_sparse_moe", gate="w1", up="w3", down="w2")
