"""Falcon: LayerNorms, angles or ALiBi, attention beside an MLP without a gate, query, key and value in one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "FalconForCausalLM"
ENDS = ("transformer.word_embeddings.weight", "transformer.ln_f.weight", "lm_head.weight")

_APART = {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}


def parse(fields: Fields) -> dict[str, Any]:
    for name, other in (
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("intermediate_size", "ffn_hidden_size"),
        ("hidden_size", "n_embed"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ):
        fields.alias(name, other)
    fields.only("apply_residual_connection_post_layernorm", False)
    fields.pop("ff_factor")  # as `ffn_hidden_size` says it
    width = fields.integer("hidden_size")
    fields.default("hidden_size", width)
    fields.default("intermediate_size", 4 * width)
    fields.default("max_position_embeddings", 2_048)
    newer, many = fields.flag("new_decoder_architecture", False), fields.flag("multi_query", True)
    beside, keys = fields.flag("parallel_attn", True), fields.pop("num_kv_heads")
    norms = fields.integer("num_ln_in_parallel_attn", 2 if newer else 1)
    if norms not in (1, 2) or (norms == 2 and not newer) or (newer and not beside):
        raise BadTask("num_ln_in_parallel_attn", f"{norms} norms of such layers are not supported")
    biased = fields.flag("bias", False)
    found = sizes(fields, eps=1e-5, tied=True, grouped=False) | {
        "norm": "layer",
        "norm_bias": True,
        "attention_bias": biased,
        "output_bias": biased,
        "mlp_bias": biased,
        "gated": False,
        "hidden_act": fields.choice("activation", {"gelu": "gelu"}, "gelu"),
        "parallel": None if not beside else "two_norms" if norms == 2 else "one_norm",
    }
    if fields.flag("alibi", False):
        found |= {"alibi": {"rounded": True}, "nope_layers": list(range(fields.layers(found)))}
    if newer:
        return found | {"num_key_value_heads": found["num_attention_heads"] if keys is None else keys}
    return found | {"num_key_value_heads": 1 if many else found["num_attention_heads"]}


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"transformer.h.{layer}"
    attention = tensor_names.fused(
        config, f"{at}.self_attention.query_key_value", f"{at}.self_attention.dense", "grouped"
    )
    mlp = tensor_names.ungated(config, f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h")
    return tensor_names.norms(config, at, _APART if config.parallel == "two_norms" else None) | attention | mlp
