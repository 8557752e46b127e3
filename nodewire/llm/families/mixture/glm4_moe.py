"""GLM-4 MoE (4.5, 4.6): heads that turn in part, plain first layers, then experts chosen by sigmoid scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import sizes

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ARCHITECTURE = "Glm4MoeForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    found = sizes(fields, eps=1e-5) | {
        "attention_bias": fields.flag("attention_bias", False),
        "qk_norm": fields.flag("use_qk_norm", False),
    }
    # Layers behind the last one predict further tokens; they are no part of the model itself.
    for field in ("num_nextn_predict_layers", "num_mtp_layers"):
        fields.pop(field)
    inner, shared = fields.integer("moe_intermediate_size", 1_408), fields.integer("n_shared_experts", 1)
    if shared < 1:
        raise BadTask("n_shared_experts", "not above 0")
    first = fields.integer("first_k_dense_replace", 1)
    return found | {
        "experts": {
            "num_experts": fields.integer("n_routed_experts", 128),
            "num_experts_per_tok": fields.integer("num_experts_per_tok", 8),
            "moe_intermediate_size": inner,
            "scoring": "sigmoid",
            "norm_topk_prob": fields.flag("norm_topk_prob", True),
            "routed_scaling_factor": fields.number("routed_scaling_factor", 1.0),
            "n_group": fields.integer("n_group", 1),
            "topk_group": fields.integer("topk_group", 1),
            "shared_intermediate_size": inner * shared,
            "mlp_only_layers": list(range(min(first, fields.layers(found)))),
        }
    }


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"model.layers.{layer}"
    mixture = config.experts_of(layer)
    if mixture is None:
        return tensor_names.of_layer(config, layer)
    rest = tensor_names.norms(config, at) | tensor_names.attention(config, f"{at}.self_attn")
    return rest | tensor_names.experts(config, mixture, f"{at}.mlp", shared="shared_experts")
