"""Qwen3: Llama's layers with norms of query and key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.llm.families.rms_norm.qwen2 import sliding_layers

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "Qwen3ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    biased = fields.flag("attention_bias", False)
    found = sizes(fields, head_dim=128) | {"qk_norm": True, "attention_bias": biased, "output_bias": biased}
    return found | sliding_layers(fields, found)
