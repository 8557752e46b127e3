"""Qwen2 and Qwen2.5: Llama's layers with biases of query, key and value; later layers may slide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import layer_kinds, sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces", "sliding_layers"]

ARCHITECTURE = "Qwen2ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    found = sizes(fields) | {"attention_bias": True}
    return found | sliding_layers(fields, found)


def sliding_layers(fields: Fields, found: dict[str, Any]) -> dict[str, Any]:
    """Which layers slide: those from `max_window_layers` on, if the file says that any do."""
    fields.only("hidden_act", "silu")
    fields.only("use_mrope", False)
    switched, window = fields.flag("use_sliding_window", False), fields.optional_integer("sliding_window", 4_096)
    first = fields.integer("max_window_layers", 28)
    return layer_kinds(fields, found, lambda layer: layer >= first, window if switched else None)
