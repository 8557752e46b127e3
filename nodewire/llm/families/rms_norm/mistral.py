"""Mistral: Llama's layers, of which each attends to a sliding window (4,096 positions unless the file says null)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import SLIDING, sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces", "windowed"]

ARCHITECTURE = "MistralForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    return windowed(fields, sizes(fields), 4_096)


def windowed(fields: Fields, found: dict[str, Any], default: int | None) -> dict[str, Any]:
    """A window that, unless it is null, all layers have."""
    fields.only("hidden_act", "silu")
    window = fields.optional_integer("sliding_window", default)
    if window is None:
        return found
    fields.only("layer_types", [SLIDING] * fields.layers(found))
    return found | {"layer_types": [SLIDING] * fields.layers(found), "sliding_window": window}
