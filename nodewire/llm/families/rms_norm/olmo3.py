"""OLMo 3: OLMo 2 with a window in three of four layers, whose angles are not scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import layer_kinds
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.llm.families.rms_norm.gemma3 import ropes
from nodewire.llm.families.rms_norm.olmo2 import olmo

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "Olmo3ForCausalLM"
_THETA = 500_000.0


def parse(fields: Fields) -> dict[str, Any]:
    found = olmo(fields, rotary=False)
    window = fields.optional_integer("sliding_window", 4_096)
    kinds = layer_kinds(fields, found, lambda layer: (layer + 1) % 4 > 0, window)
    theta = float(fields.number("rope_theta", _THETA))
    return found | kinds | ropes(fields, found, theta, _THETA, sliding=bool(kinds))
