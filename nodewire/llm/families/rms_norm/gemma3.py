"""Gemma 3 (text): Gemma 2 with norms of query and key for soft caps, and angles of their own where it slides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.rotary import described
from nodewire.llm.families.fields.sizes import FULL, SLIDING, layer_kinds
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.llm.families.rms_norm.gemma import GELU, gemma

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces", "ropes"]

ARCHITECTURE = "Gemma3ForCausalLM"
_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2_304,
    "intermediate_size": 9_216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
"""Which files of models that also see leave out."""


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", GELU)
    every = fields.either("sliding_window_pattern", "_sliding_window_pattern", 6)
    if every < 1:
        raise BadTask("sliding_window_pattern", "not above 0")
    for field, value in _DEFAULTS.items():
        fields.default(field, value)
    found = gemma(fields, rotary=False)
    window = fields.optional_integer("sliding_window", 4_096)
    kinds = layer_kinds(fields, found, lambda layer: (layer + 1) % every > 0, window)
    fields.only("attn_logit_softcapping", None)  # which `transformers` does not apply
    return (
        found
        | kinds
        | {
            "sandwich_norms": True,
            "qk_norm": True,
            "query_pre_attn_scalar": fields.number("query_pre_attn_scalar", 256),
            "final_logit_softcapping": fields.optional("final_logit_softcapping"),
        }
        | ropes(
            fields,
            found,
            float(fields.number("rope_theta", 1_000_000.0)),
            float(fields.number("rope_local_base_freq", 10_000.0)),
            sliding=bool(kinds),
        )
    )


def ropes(fields: Fields, found: dict[str, Any], theta: float, local: float, *, sliding: bool) -> dict[str, Any]:
    """The angles of full layers and of sliding ones, by these bases where the file has none of each kind."""
    newer, scaling = fields.within("rope_parameters"), fields.within("rope_scaling")
    if newer and scaling:
        raise BadTask("rope_scaling", "beside rope_parameters")
    if newer.keys() - {FULL, SLIDING}:
        raise BadTask("rope_parameters", f"other fields than {FULL} and {SLIDING}")
    wide, narrow = newer.get(FULL) or scaling, newer.get(SLIDING) or {}
    if not isinstance(wide, dict) or not isinstance(narrow, dict):
        raise BadTask("rope_parameters", "not objects")
    positions, head_dim = found["max_position_embeddings"], found["head_dim"]
    near = described(narrow, positions, head_dim, local)
    if near["rope_scaling"] is not None or "rotary_dim" in near:
        raise BadTask("rope_parameters", f"{SLIDING} may not be scaled")
    far = described(wide, positions, head_dim, theta)
    return far | {"rope_local_base_freq": near["rope_theta"] if sliding else None}
