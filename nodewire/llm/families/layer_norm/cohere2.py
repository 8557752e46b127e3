"""Command R7B and A: Command R with a window in most layers; the others see everything, and do not turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.sizes import SLIDING, layer_kinds
from nodewire.llm.families.layer_norm.cohere import command, pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "Cohere2ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    for field, value in (
        ("order_of_interleaved_layers", "local_attn_first"),
        ("position_embedding_type", "rope_gptj"),
        ("rotary_pct", 1.0),
        ("use_embedding_sharing", True),
        ("use_gated_activation", True),
        ("use_parallel_block", True),
        ("use_qk_norm", False),
    ):
        fields.only(field, value)
    fields.pop("use_parallel_embedding")  # how it was trained
    for name in ("_sliding_window_pattern", "layer_switch"):
        fields.alias("sliding_window_pattern", name)
    every, found = fields.integer("sliding_window_pattern", 4), command(fields)
    if every < 1:
        raise BadTask("sliding_window_pattern", "not above 0")
    window = fields.optional_integer("sliding_window", 4_096)
    kinds = layer_kinds(fields, found, lambda layer: (layer + 1) % every > 0, window)
    said = kinds.get("layer_types", ())
    still = [layer for layer in range(fields.layers(found)) if not said or said[layer] != SLIDING]
    return found | kinds | {"nope_layers": still}
