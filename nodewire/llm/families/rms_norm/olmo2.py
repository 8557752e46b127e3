"""OLMo 2: norms after attention and MLP alone, and norms of query and key over all heads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "olmo", "parse", "pieces"]

ARCHITECTURE = "Olmo2ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    return olmo(fields)


def olmo(fields: Fields, **how: Any) -> dict[str, Any]:
    """What OLMo 2 and 3 share."""
    fields.only("hidden_act", "silu")
    biased = fields.flag("attention_bias", False)
    return sizes(fields, eps=1e-5, grouped=False, **how) | {
        "attention_bias": biased,
        "output_bias": biased,
        "pre_norms": False,
        "sandwich_norms": True,
        "qk_norm": True,
        "qk_norm_of": "heads",
    }
