"""The Llama family: LlamaForCausalLM as Hugging Face stores it (Llama 2 and 3, TinyLlama, SmolLM ...)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodewire.errors import BadTask
from nodewire.llm.config import real

ARCHITECTURE = "LlamaForCausalLM"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_COPIED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def layer_names(layer: int) -> dict[str, str]:
    at = f"model.layers.{layer}"
    return {
        "attention_norm": f"{at}.input_layernorm.weight",
        "q": f"{at}.self_attn.q_proj.weight",
        "k": f"{at}.self_attn.k_proj.weight",
        "v": f"{at}.self_attn.v_proj.weight",
        "o": f"{at}.self_attn.o_proj.weight",
        "mlp_norm": f"{at}.post_attention_layernorm.weight",
        "gate": f"{at}.mlp.gate_proj.weight",
        "up": f"{at}.mlp.up_proj.weight",
        "down": f"{at}.mlp.down_proj.weight",
    }


def parse(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a DecoderConfig.

    Raises:
        BadTask: a field is missing, is no number, or asks for what the layers do not compute.
    """
    for field, plain in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(field, plain) != plain:
            raise BadTask(field, f"{str(config[field])[:40]} is not supported, only {plain}")
    if config.get("quantization_config") is not None:
        raise BadTask("quantization_config", "quantized checkpoints are not supported")
    missing = next((field for field in _COPIED if field not in config), None)
    if missing:
        raise BadTask(missing, "missing")
    fields = {field: config[field] for field in _COPIED}
    heads, width = fields["num_attention_heads"], fields["hidden_size"]
    head_dim = config.get("head_dim")
    if head_dim is None and type(heads) is int and type(width) is int and heads > 0:
        head_dim = width // heads
    kv_heads = config.get("num_key_value_heads")
    rope = _rope(config)
    return fields | {
        "family": "llama",
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _number(config, "rms_norm_eps", 1e-6),
        "rope_theta": _number(rope, "rope_theta", 10_000.0),
        "rope_scaling": _scaling(rope),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
    }


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of newer files, or `rope_theta` and `rope_scaling` of older ones, in the newer form."""
    rope = config.get("rope_parameters")
    if rope is None:
        rope = {"rope_theta": config.get("rope_theta", 10_000.0), **_object(config, "rope_scaling")}
    elif not isinstance(rope, dict):
        raise BadTask("rope_parameters", "not an object")
    return rope


def _object(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = config.get(field) or {}
    if not isinstance(value, dict):
        raise BadTask(field, "not an object")
    return value


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise BadTask("rope_scaling", f"{str(kind)[:40]} is not supported, only default and llama3")
    factors = {field: _number(rope, field) for field in ("factor", "low_freq_factor", "high_freq_factor")}
    original = "original_max_position_embeddings"
    return {"rope_type": kind, original: rope.get(original), **factors}


def _number(values: Mapping[str, Any], field: str, default: float | None = None) -> str:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise BadTask(field, "not a number" if field in values else "missing")
    return real(value)
