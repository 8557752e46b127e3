"""Qwen2-MoE (and Qwen1.5-MoE): Qwen2's attention, many small experts, and an MLP that all positions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.sizes import layer_kinds, sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "many", "parse", "pieces"]

ARCHITECTURE = "Qwen2MoeForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    found = sizes(fields) | {"attention_bias": fields.flag("qkv_bias", True)}
    fields.only("hidden_act", "silu")
    switched, window = fields.flag("use_sliding_window", False), fields.optional_integer("sliding_window", 4_096)
    first = fields.integer("max_window_layers", 28)
    kinds = layer_kinds(
        fields,
        found,
        lambda layer: layer % 2 == 0 and layer < first,
        window if switched else None,
    )
    shared = {
        "shared_intermediate_size": fields.integer("shared_expert_intermediate_size", 5_632),
        "shared_gate": True,
    }
    return found | kinds | {"experts": many(fields, found, 60, 4, 1_408) | shared}


def many(fields: Fields, found: dict[str, Any], count: int, chosen: int, inner: int) -> dict[str, Any]:
    """A mixture in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
    step, plain = fields.integer("decoder_sparse_step", 1), fields.integers("mlp_only_layers")
    layers = fields.layers(found)
    if step < 1:
        raise BadTask("decoder_sparse_step", "not above 0")
    return {
        "num_experts": fields.either("num_experts", "num_local_experts", count),
        "num_experts_per_tok": fields.integer("num_experts_per_tok", chosen),
        "moe_intermediate_size": fields.integer("moe_intermediate_size", inner),
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
        "mlp_only_layers": [layer for layer in range(layers) if layer in plain or (layer + 1) % step],
    }
