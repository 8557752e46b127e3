"""Qwen3-MoE: Qwen3's attention and many small experts; a window, if it has one, is every layer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import SLIDING, sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.llm.families.mixture.qwen2_moe import many

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "Qwen3MoeForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    biased = fields.flag("attention_bias", False)
    found = sizes(fields) | {"qk_norm": True, "attention_bias": biased, "output_bias": biased}
    switched, window = fields.flag("use_sliding_window", False), fields.optional_integer("sliding_window", 4_096)
    fields.pop("max_window_layers")  # which `transformers` does not apply
    if switched and window is not None:
        found |= {"layer_types": [SLIDING] * fields.layers(found), "sliding_window": window}
    return found | {"experts": many(fields, found, 128, 8, 768)}
