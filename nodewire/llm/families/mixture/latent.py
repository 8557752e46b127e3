"""The common parts of DeepSeek's families: attention by latents, plain first layers, then experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields import tensor_names
from nodewire.llm.families.fields.fields import Fields, as_real
from nodewire.llm.families.fields.rotary import rope, temperature
from nodewire.llm.families.fields.sizes import sizes
from nodewire.llm.families.fields.tensor_names import Piece
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig

_MOST = 1_024
"""Numbers of a position that are kept, and of a head."""


def parse(fields: Fields, *, interleaved: bool) -> dict[str, Any]:
    """All but the experts. Raises BadTask."""
    for field, value in (("hidden_act", "silu"), ("attention_bias", False), ("moe_layer_freq", 1)):
        fields.only(field, value)
    # Of training and of how experts lie; layers behind the last one, which predict further tokens.
    for field in ("ep_size", "seq_aux", "aux_loss_alpha", "num_nextn_predict_layers", "num_mtp_layers"):
        fields.pop(field)
    rank, still = _size(fields, "kv_lora_rank", 512), _size(fields, "qk_nope_head_dim", 128)
    turning, values = _size(fields, "qk_rope_head_dim", 64), _size(fields, "v_head_dim", 128)
    if turning % 2:
        raise BadTask("qk_rope_head_dim", f"{turning} dimensions are no pairs that turn: an even number is needed")
    if rank % 2 or rank + turning > _MOST:
        raise BadTask(
            "kv_lora_rank",
            f"{rank} numbers beside a key of {turning}: an even number is needed, and {_MOST} at most of both",
        )
    fields.only("head_dim", turning)
    fields.only("qk_head_dim", still + turning)
    scaled = _mscale(fields)
    found = sizes(fields, grouped=False, rotary=False)
    if found["num_key_value_heads"] != found["num_attention_heads"]:
        raise BadTask("num_key_value_heads", "another number than num_attention_heads, which may be left out")
    found |= rope(fields, found["max_position_embeddings"], turning)
    if "rotary_dim" in found:
        raise BadTask("partial_rotary_factor", "not 1: qk_rope_head_dim says what turns, so it may be left out")
    return found | {
        "num_key_value_heads": 1,
        "head_dim": turning + rank,
        "rotary_dim": turning,
        "query_pre_attn_scalar": real((still + turning) / scaled**4),
        "latent": {
            "q_lora_rank": fields.optional_integer("q_lora_rank", 1_536),
            "kv_lora_rank": rank,
            "qk_nope_head_dim": still,
            "qk_rope_head_dim": turning,
            "v_head_dim": values,
            "interleaved": interleaved,
        },
    }


def mixture(
    fields: Fields, found: dict[str, Any], *, experts: int, shared: int, inner: int, first: int, scale: float
) -> dict[str, Any]:
    """The experts but for their choice; the numbers are those of files that leave them out. Raises BadTask."""
    inner, plain = fields.integer("moe_intermediate_size", inner), fields.integer("first_k_dense_replace", first)
    return {
        "num_experts": fields.integer("n_routed_experts", experts),
        "moe_intermediate_size": inner,
        "shared_intermediate_size": inner * fields.integer("n_shared_experts", shared),
        "routed_scaling_factor": fields.number("routed_scaling_factor", scale),
        "mlp_only_layers": list(range(min(plain, fields.layers(found)))),
    }


def _size(fields: Fields, name: str, default: int) -> int:
    found = fields.integer(name, default)
    if not 0 < found <= _MOST:
        raise BadTask(name, f"{found} is not from 1 to {_MOST}: no head of such a size is computed")
    return found


def _mscale(fields: Fields) -> float:
    """By whose square scores are more than by the heads' size, for angles that are scaled; the fields stay."""
    said: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        one = fields.within(name)
        fields.default(name, one or None)
        said |= one
    every = said.get("mscale_all_dim")
    if not every or said.get("factor") is None:
        return 1.0
    return temperature(float(as_real("rope_scaling.factor", said["factor"])), float(as_real("mscale_all_dim", every)))


def pieces(config: DecoderConfig, layer: int) -> tensor_names.Pieces:
    at, latent, mixture = f"model.layers.{layer}", config.latent, config.experts_of(layer)
    found = tensor_names.norms(config, at)
    if latent is None:
        found |= tensor_names.attention(config, f"{at}.self_attn")
    else:
        width, own, rank = config.hidden_size, f"{at}.self_attn", latent.kv_lora_rank
        kept = Piece(f"{own}.kv_a_proj_with_mqa.weight", (rank + latent.qk_rope_head_dim, width))
        rows = config.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        found |= {
            "kv_a_norm": (Piece(f"{own}.kv_a_layernorm.weight", (rank,)),),
            "kv_b": (Piece(f"{own}.kv_b_proj.weight", (rows, rank)),),
            "o": (Piece(f"{own}.o_proj.weight", (width, config.attended)),),
        }
        if latent.q_lora_rank is None:
            found["qkv"] = (Piece(f"{own}.q_proj.weight", (config.q_rows, width)), kept)
        else:
            found |= {
                "qkv": (Piece(f"{own}.q_a_proj.weight", (latent.q_lora_rank, width)), kept),
                "q_a_norm": (Piece(f"{own}.q_a_layernorm.weight", (latent.q_lora_rank,)),),
                "q_b": (Piece(f"{own}.q_b_proj.weight", (config.q_rows, latent.q_lora_rank)),),
            }
    if mixture is None:
        return found | tensor_names.mlp(config, f"{at}.mlp", config.intermediate_size)
    return found | tensor_names.experts(config, mixture, f"{at}.mlp", shared="shared_experts")
