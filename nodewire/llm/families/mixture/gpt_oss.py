"""gpt-oss: sinks in the attention, a window in every other layer, biases, and experts stored in blocks of MXFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.sizes import layer_kinds, sizes
from nodewire.llm.families.fields.tensor_names import Piece
from nodewire.weights.mxfp4 import GROUP

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig, Experts

ARCHITECTURE = "GptOssForCausalLM"

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4_096,
}


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("hidden_act", "silu")
    fields.only("swiglu_alpha", 1.702)
    fields.pop("initial_context_length")  # which `transformers` reads in rope_scaling
    biased = fields.flag("attention_bias", True)
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        fields.default("rope_scaling", _YARN)
    found = sizes(fields, eps=1e-5, theta=150_000.0, head_dim=64)
    window = fields.optional_integer("sliding_window", 128)
    chosen = fields.either("num_experts_per_tok", "experts_per_token", 4)
    return (
        found
        | layer_kinds(fields, found, lambda layer: layer % 2 == 0, window)
        | {
            "attention_bias": biased,
            "output_bias": biased,
            "attention_sinks": True,
            "hidden_act": "clamped_swiglu",
            "swiglu_limit": fields.number("swiglu_limit", 7.0),
            "experts": {
                "num_experts": fields.either("num_local_experts", "num_experts", 128),
                "num_experts_per_tok": chosen,
                "moe_intermediate_size": found["intermediate_size"],
                "norm_topk_prob": True,
                "bias": True,
                "stored": _stored(fields, found),
            },
        }
    )


def _stored(fields: Fields, found: dict[str, Any]) -> str:
    quantized = fields.within("quantization_config")
    if not quantized:
        return "stacked"
    if quantized.get("quant_method") != "mxfp4":
        raise BadTask("quantization_config", "only of the method mxfp4")
    for field in ("hidden_size", "intermediate_size"):
        if type(found[field]) is not int or found[field] % GROUP:
            raise BadTask(field, f"not in blocks of {GROUP}, which mxfp4 has")
    return "mxfp4"


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at = f"model.layers.{layer}"
    mixture = config.experts_of(layer)
    if mixture is None:
        return tensor_names.of_layer(config, layer)
    width, count, inner = config.hidden_size, mixture.num_experts, mixture.moe_intermediate_size
    mlp = f"{at}.mlp"
    return (
        tensor_names.norms(config, at)
        | tensor_names.attention(config, f"{at}.self_attn")
        | {
            "router": (Piece(f"{mlp}.router.weight", (count, width)),),
            "router_bias": (Piece(f"{mlp}.router.bias", (count,)),),
            "experts_gate_up": (_matrices(mixture, f"{mlp}.experts.gate_up_proj", 2 * inner, width),),
            "experts_gate_up_bias": (Piece(f"{mlp}.experts.gate_up_proj_bias", (count, 2 * inner)),),
            "experts_down": (_matrices(mixture, f"{mlp}.experts.down_proj", width, inner),),
            "experts_down_bias": (Piece(f"{mlp}.experts.down_proj_bias", (count, width)),),
        }
    )


def _matrices(mixture: Experts, name: str, rows: int, columns: int) -> Piece:
    """All experts' matrices [rows, columns]."""
    if mixture.stored != "mxfp4":
        return Piece(name, (mixture.num_experts, columns, rows), "transposed")
    blocks = (mixture.num_experts, rows, columns // GROUP, GROUP // 2)
    return Piece(f"{name}_blocks", blocks, "mxfp4", f"{name}_scales")
