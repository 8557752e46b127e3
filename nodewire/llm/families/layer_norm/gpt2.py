"""GPT-2: learned positions, LayerNorms, biases, an MLP without a gate, and matrices that are stored [in, out]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import Piece
from nodewire.llm.families.rms_norm.gemma import GELU
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "GPT2LMHeadModel"
ENDS = ("transformer.wte.weight", "transformer.ln_f.weight", "lm_head.weight")

_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
}
_ACTIVATIONS = {"gelu_new": GELU, GELU: GELU, "gelu_fast": GELU, "gelu": "gelu"}
_NORMS = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}


def parse(fields: Fields) -> dict[str, Any]:
    for name, other in _NAMES.items():
        fields.alias(name, other)
    width = fields.integer("hidden_size")
    fields.default("hidden_size", width)
    fields.default("intermediate_size", 4 * width)
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    # What it summarizes a text with for classes, what is as `n_positions`, and the order of sums.
    for field in ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"):
        fields.pop(field)
    for field in ("summary_first_dropout", "attn_pdrop", "n_ctx", "reorder_and_upcast_attn"):
        fields.pop(field)
    found = sizes(fields, eps=1e-5, tied=True, grouped=False, rotary=False)
    return found | {
        "rope_theta": real(10_000.0),
        "nope_layers": list(range(fields.layers(found))),
        "learned_positions": True,
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "gated": False,
        "hidden_act": fields.choice("activation_function", _ACTIVATIONS, "gelu_new"),
    }


def own_name(stored: str) -> str:
    """The name of a tensor: the first files leave out what stands before all but the head's."""
    return stored if stored.startswith(("transformer.", "lm_head.")) else f"transformer.{stored}"


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"transformer.h.{layer}"
    found = (
        tensor_names.norms(config, at, _NORMS)
        | tensor_names.fused(config, f"{at}.attn.c_attn", f"{at}.attn.c_proj", "transposed")
        | tensor_names.ungated(config, f"{at}.mlp.c_fc", f"{at}.mlp.c_proj", "transposed")
    )
    if layer == 0:
        found["positions"] = (Piece("transformer.wpe.weight", (config.max_position_embeddings, config.hidden_size)),)
    return found
