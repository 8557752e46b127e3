"""StableLM: LayerNorms, heads of which a quarter turns; of larger ones attention and MLP take the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import Piece

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "StableLmForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    fields.alias("rms_norm_eps", "layer_norm_eps")
    found = sizes(fields, eps=1e-5, part=0.25) | {
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": fields.flag("use_qkv_bias", False),
    }
    if fields.flag("qk_layernorm", False):
        found |= {"qk_norm": True, "qk_norm_of": "each_head"}
    return found | {"parallel": "one_norm" if fields.flag("use_parallel_residual", False) else None}


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    found = tensor_names.of_layer(config, layer)
    if not config.qk_norm:
        return found
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    return found | {
        f"{which}_norm": tuple(
            Piece(f"model.layers.{layer}.self_attn.{which}_layernorm.norms.{head}.weight", (config.head_dim,))
            for head in range(count)
        )
        for which, count in heads.items()
    }
