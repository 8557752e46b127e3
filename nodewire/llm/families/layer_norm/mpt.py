"""MPT: ALiBi in place of angles, LayerNorms without biases, an MLP without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.fields import Fields
from nodewire.llm.families.fields.sizes import sizes
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "MptForCausalLM"
OWN_ARCHITECTURE = "MPTForCausalLM"
"""The class of its authors' code."""
ENDS = ("transformer.wte.weight", "transformer.norm_f.weight", "lm_head.weight")

_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}
_NORMS = {"attention_norm": "norm_1", "mlp_norm": "norm_2"}


def parse(fields: Fields) -> dict[str, Any]:
    for name, other in _NAMES.items():
        fields.alias(name, other)
    for field, values in (
        ("expansion_ratio", (4,)),
        ("no_bias", (True,)),
        ("norm_type", ("low_precision_layernorm", "layernorm")),
        ("logit_scale", (1.0,)),
        ("embedding_fraction", (1.0,)),
        ("ffn_config", ({"ffn_type": "mptmlp"}, {"ffn_type": "mptmlp", "fc_type": "torch"})),
    ):
        fields.only(field, *values)
    # How its weights began, what it was read with, and positions that ALiBi stands for.
    for field in ("init_config", "init_device", "verbose", "tokenizer_name", "fc_type", "learned_pos_emb"):
        fields.pop(field)
    width = fields.integer("hidden_size")
    fields.default("hidden_size", width)
    fields.default("intermediate_size", 4 * width)
    fields.default("max_position_embeddings", 2_048)
    attention = _attention(fields)
    found = sizes(fields, eps=1e-5, tied=True, grouped=False, rotary=False)
    return (
        found
        | {
            "rope_theta": real(10_000.0),
            "nope_layers": list(range(fields.layers(found))),
            "norm": "layer",
            "gated": False,
            "hidden_act": "gelu",
        }
        | attention
    )


def _attention(fields: Fields) -> dict[str, Any]:
    """The fields that `attn_config` says. Raises BadTask."""
    inner = Fields(fields.within("attn_config"))
    try:
        if not inner.flag("alibi", True):
            raise BadTask("alibi", "learned positions of an MPT are not computed: take one that has ALiBi (7b, 30b)")
        for field in ("qk_ln", "prefix_lm", "attn_uses_sequence_id", "rope"):
            inner.only(field, False)
        inner.only("attn_type", "multihead_attention")
        inner.only("sliding_window_size", -1)
        for field in ("attn_impl", "fc_type", "kv_n_heads"):  # the kernels; heads are those of queries
            inner.pop(field)
        bias_max, clip = inner.number("alibi_bias_max", 8.0), inner.optional("clip_qkv")
        scale = inner.optional("softmax_scale")
        if scale is not None and not float(scale) > 0:
            raise BadTask("softmax_scale", "not above 0: leave it out for that of the heads' size")
        inner.end()
    except BadTask as error:
        raise BadTask(f"attn_config.{error.field}", error.reason) from None
    found: dict[str, Any] = {"alibi": {"bias_max": bias_max}, "clip_qkv": clip}
    return found if scale is None else found | {"query_pre_attn_scalar": real(float(scale) ** -2)}


def own_name(stored: str) -> str:
    """The name of a tensor: a task's have no capitals."""
    return stored.replace(".Wqkv.", ".wqkv.")


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"transformer.blocks.{layer}"
    return (
        tensor_names.norms(config, at, _NORMS)
        | tensor_names.fused(config, f"{at}.attn.wqkv", f"{at}.attn.out_proj")
        | tensor_names.ungated(config, f"{at}.ffn.up_proj", f"{at}.ffn.down_proj")
    )
