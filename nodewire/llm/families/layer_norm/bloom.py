"""BLOOM: ALiBi in place of angles, a norm of embeddings, LayerNorms, biases, an MLP without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.layer_norm.gpt2 import own_name
from nodewire.llm.families.rms_norm.gemma import GELU
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

__all__ = ["ARCHITECTURE", "ENDS", "own_name", "parse", "pieces"]

ARCHITECTURE = "BloomForCausalLM"
ENDS = ("transformer.word_embeddings.weight", "transformer.ln_f.weight", "lm_head.weight")


def parse(fields: Fields) -> dict[str, Any]:
    for name, other in (
        ("hidden_size", "n_embed"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "seq_length"),
        ("intermediate_size", "n_inner"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ):
        fields.alias(name, other)
    fields.only("apply_residual_connection_post_layernorm", False)
    # How its authors' kernels are put together, and the order of sums.
    for field in ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi"):
        fields.pop(field)
    for field in ("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"):
        fields.pop(field)
    width = fields.integer("hidden_size")
    fields.default("hidden_size", width)
    fields.only("intermediate_size", 4 * width)
    fields.default("intermediate_size", 4 * width)
    fields.default("max_position_embeddings", 2_048)
    found = sizes(fields, eps=1e-5, tied=True, grouped=False, rotary=False)
    return found | {
        "rope_theta": real(10_000.0),
        "nope_layers": list(range(fields.layers(found))),
        "alibi": {},
        "embedding_norm": True,
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "gated": False,
        "hidden_act": GELU,
    }


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"transformer.h.{layer}"
    found = (
        tensor_names.norms(config, at)
        | tensor_names.fused(config, f"{at}.self_attention.query_key_value", f"{at}.self_attention.dense", "grouped")
        | tensor_names.ungated(config, f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h")
    )
    first = tensor_names.embedding_norm(config, "transformer.word_embeddings_layernorm") if layer == 0 else {}
    return found | first
