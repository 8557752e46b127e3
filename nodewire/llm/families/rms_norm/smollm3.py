"""SmolLM3: Llama's layers, of which every fourth turns neither queries nor keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.sizes import layer_kinds, sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "SmolLM3ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    biased = fields.flag("attention_bias", False)
    found = sizes(fields, theta=2_000_000.0, tied=True) | {
        "attention_bias": biased,
        "output_bias": biased,
        "mlp_bias": fields.flag("mlp_bias", False),
    }
    layers, every = fields.layers(found), fields.integer("no_rope_layer_interval", 4)
    turning = fields.integers("no_rope_layers") or [int(every == 0 or (n + 1) % every > 0) for n in range(layers)]
    if len(turning) < layers:
        raise BadTask("no_rope_layers", "fewer than there are layers")
    still = [layer for layer in range(layers) if not turning[layer]]
    switched, window = fields.flag("use_sliding_window", False), fields.optional_integer("sliding_window")
    fields.pop("max_window_layers")  # which `transformers` does not apply
    kinds = layer_kinds(fields, found, lambda layer: layer in still, window if switched else None)
    return found | kinds | {"nope_layers": still}
