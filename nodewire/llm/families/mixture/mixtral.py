"""Mixtral: Mistral's attention, and in every layer a mixture whose chosen experts' weights add up to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.rms_norm.mistral import windowed

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

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


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"model.layers.{layer}"
    mixture = config.experts_of(layer)
    if mixture is None:
        return tensor_names.of_layer(config, layer)
    rest = tensor_names.norms(config, at) | tensor_names.attention(config, f"{at}.self_attn")
    return rest | tensor_names.experts(config, mixture, f"{at}.block_sparse_moe", gate="w1", up="w3", down="w2")
