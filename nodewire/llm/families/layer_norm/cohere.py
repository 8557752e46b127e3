"""Command R: LayerNorms without biases, attention and MLP after the same one, scaled logits.

Pairs that turn stand beside each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import Piece

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "CohereForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    found = command(fields, theta=500_000.0)
    if fields.flag("use_qk_norm", False):
        found |= {"qk_norm": True, "qk_norm_of": "each_head"}
    return found


def command(fields: Fields, **how: Any) -> dict[str, Any]:
    """What all Commands share."""
    fields.only("hidden_act", "silu")
    fields.alias("rms_norm_eps", "layer_norm_eps")
    biased = fields.flag("attention_bias", False)
    return sizes(fields, eps=1e-5, tied=True, grouped=False, **how) | {
        "norm": "layer",
        "parallel": "one_norm",
        "attention_bias": biased,
        "output_bias": biased,
        "logit_scale": fields.number("logit_scale", 0.0625),
    }


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    found = tensor_names.of_layer(config, layer)
    if config.qk_norm:
        at = f"model.layers.{layer}.self_attn"
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        for which, count in heads.items():
            found[f"{which}_norm"] = (Piece(f"{at}.{which}_norm.weight", (count, config.head_dim)),)
    return tensor_names.interleaved(config, found)
