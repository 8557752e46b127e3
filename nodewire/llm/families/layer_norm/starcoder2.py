"""StarCoder2: LayerNorms, biases everywhere, an MLP without a gate, and a window that all layers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.rms_norm.gemma import GELU
from nodewire.llm.families.rms_norm.mistral import windowed

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "Starcoder2ForCausalLM"
_LIKE_NORM_EPSILON = ("norm_epsilon", "layer_norm_epsilon")


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", GELU)
    fields.only("mlp_type", "default")
    fields.only("norm_type", "layer_norm")
    fields.only("scale_attn_weights", True)
    # Which `transformers` does not read.
    for field in ("activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        fields.pop(field)
    for name in _LIKE_NORM_EPSILON:
        fields.alias("rms_norm_eps", name)
    biased = fields.flag("use_bias", True)
    return windowed(fields, sizes(fields, eps=1e-5, tied=True), None) | {
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": biased,
        "output_bias": biased,
        "mlp_bias": biased,
        "hidden_act": GELU,
        "gated": False,
    }


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"model.layers.{layer}"
    rest = tensor_names.norms(config, at) | tensor_names.attention(config, f"{at}.self_attn")
    return rest | tensor_names.ungated(config, f"{at}.mlp.c_fc", f"{at}.mlp.c_proj")
