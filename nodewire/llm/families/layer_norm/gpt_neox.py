"""GPT-NeoX and Pythia: LayerNorms, biases, an MLP without a gate, heads that turn in part, attention beside the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.rms_norm.gemma import GELU

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "GPTNeoXForCausalLM"
ENDS = ("gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm.weight", "embed_out.weight")

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": GELU, "gelu_fast": GELU, GELU: GELU}
"""`gelu_fast` is the approximation by tanh, with its constant cut to ten digits."""


def parse(fields: Fields) -> dict[str, Any]:
    activation = fields.choice("hidden_act", _ACTIVATIONS, "gelu")
    fields.alias("rms_norm_eps", "layer_norm_eps")
    fields.alias("rope_theta", "rotary_emb_base")
    fields.alias("partial_rotary_factor", "rotary_pct")
    biased = fields.flag("attention_bias", True)
    return sizes(fields, eps=1e-5, grouped=False, part=0.25) | {
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": biased,
        "output_bias": biased,
        "mlp_bias": True,
        "gated": False,
        "hidden_act": activation,
        "parallel": "two_norms" if fields.flag("use_parallel_residual", True) else None,
    }


def own_name(stored: str) -> str:
    """The name of a tensor, which older and newer files call the head otherwise."""
    return ENDS[-1] if stored == "lm_head.weight" else stored


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"gpt_neox.layers.{layer}"
    attention = tensor_names.fused(config, f"{at}.attention.query_key_value", f"{at}.attention.dense", "grouped")
    mlp = tensor_names.ungated(config, f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h")
    return tensor_names.norms(config, at) | attention | mlp
