"""Phi-3, 3.5 and 4: Llama's layers with query, key and value in one tensor, gate and up in one, and LongRoPE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import Piece, Pieces, of_layer
from nodewire.llm.families.rms_norm.mistral import windowed

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "Phi3ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    for field in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.only(field, False)
    for field in ("interpolate_factor", "full_attn_mod"):
        fields.only(field, 1)
    fields.default("original_max_position_embeddings", 4_096)
    return windowed(fields, sizes(fields, eps=1e-5, grouped=False), None)


def pieces(config: DecoderConfig, layer: int) -> Pieces:
    at, width = f"model.layers.{layer}", config.hidden_size
    return of_layer(config, layer) | {
        "qkv": (Piece(f"{at}.self_attn.qkv_proj.weight", (config.qkv_rows, width)),),
        "gate_up": (Piece(f"{at}.mlp.gate_up_proj.weight", (2 * config.intermediate_size, width)),),
    }
