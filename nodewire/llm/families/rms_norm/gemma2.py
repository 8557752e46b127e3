"""Gemma 2: Gemma with norms after attention and MLP, soft caps, and a sliding window in every other layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import layer_kinds
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.llm.families.rms_norm.gemma import GELU, gemma

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "Gemma2ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", GELU)
    found = gemma(fields)
    fields.alias("sliding_window", "sliding_window_size")
    window = fields.optional_integer("sliding_window", 4_096)
    return found | {
        "sandwich_norms": True,
        "query_pre_attn_scalar": fields.number("query_pre_attn_scalar", 256),
        "attn_logit_softcapping": fields.optional("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.optional("final_logit_softcapping", 30.0),
        **layer_kinds(fields, found, lambda layer: layer % 2 == 0, window),
    }
