"""Gemma: norms that store their weights less one, embeddings scaled by the root of the width, a GELU in the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "gemma", "parse", "pieces"]

ARCHITECTURE = "GemmaForCausalLM"
GELU = "gelu_pytorch_tanh"


def parse(fields: Fields) -> dict[str, Any]:
    # The first files said "gelu" and meant its approximation.
    fields.only("hidden_act", "gelu", GELU)
    return gemma(fields)


def gemma(fields: Fields, **how: Any) -> dict[str, Any]:
    """What all Gemmas share."""
    fields.only("hidden_activation", GELU)
    fields.only("use_bidirectional_attention", False)
    biased = fields.flag("attention_bias", False)
    found = sizes(fields, tied=True, head_dim=256, **how)
    width = found["hidden_size"]
    if type(width) is not int or width < 1:
        raise BadTask("hidden_size", "not a whole number above 0")
    return found | {
        "attention_bias": biased,
        "output_bias": biased,
        "hidden_act": GELU,
        "norm_plus_one": True,
        "embedding_scale": real(width**0.5),
    }
