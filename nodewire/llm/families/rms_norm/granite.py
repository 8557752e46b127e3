"""Granite 3: Llama's layers with multipliers of embeddings, scores, outputs and logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import of_layer as pieces
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "GraniteForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    biased = fields.flag("attention_bias", False)
    scores, logits = (_above_0(fields, name) for name in ("attention_multiplier", "logits_scaling"))
    return sizes(fields, grouped=False) | {
        "attention_bias": biased,
        "output_bias": biased,
        "mlp_bias": fields.flag("mlp_bias", False),
        "query_pre_attn_scalar": real(scores**-2),
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_multiplier": fields.number("residual_multiplier", 1.0),
        "logit_scale": real(1 / logits),
    }


def _above_0(fields: Fields, name: str) -> float:
    value = float(fields.number(name, 1.0))
    if not 1e-5 < value < 1e5:
        raise BadTask(name, "not between 0.00001 and 100000")
    return value
