"""What a GGUF file says of its model, as the config.json that Hugging Face's files of it have.

Keys are those of llama.cpp (https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py), each under
the architecture's name. One that is not read here is refused, as `families` do: it could change what is computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nodewire.errors import BadTask, TooLarge, Unsupported
from nodewire.llm.families.fields.fields import Fields
from nodewire.llm.families.fields.sizes import FULL, SLIDING
from nodewire.llm.spec.config import MAX_LAYERS
from nodewire.weights.gguf_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.gguf.header import TensorEntry
    from nodewire.gguf.model import Model

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
BESIDE = frozenset({FACTORS, LONG, SHORT})
"""Tensors that are a part of the configuration."""
_SILENT = frozenset({"vocab_size", "rope.scaling.finetuned", "attention.causal"})
_MAX_FACTORS = 512


def document(model: Model) -> dict[str, Any]:
    """A config.json, unchecked.

    Raises:
        Unsupported: another architecture than those that are read, or a variant of one.
        BadTask: a key is missing, unknown, or not of its type.
        TooLarge: an array has more elements than a model has layers.

    """
    read = _ARCHITECTURES.get(model.architecture)
    if read is None:
        known = ", ".join(_ARCHITECTURES)
        raise Unsupported("gguf.general.architecture", f"{model.architecture[:40]} is not one of {known}")
    own = f"{model.architecture}."
    said = {key: _plain(key, value) for key, value in model.metadata.items() if key.startswith(own)}
    fields = Fields({key.removeprefix(own): value for key, value in said.items()}, _SILENT)
    try:
        fields.only("logit_scale", 0.0, 1.0)
        found = read(model, fields)
        fields.end()
    except BadTask as error:
        if error.field.startswith("gguf."):
            raise
        raise BadTask(f"gguf.{model.architecture}.{error.field}", error.reason) from None
    return found


def _plain(key: str, value: Any) -> Any:
    """The one element of an array whose elements are all the same: some writers say of each layer what is so of all.

    Raises TooLarge: such an array has an element for each layer, and Python's take eight times what the file does.
    """
    if isinstance(value, np.ndarray | list) and len(value) > MAX_LAYERS:
        raise TooLarge(f"gguf.{key}", f"{len(value)} elements, at most one for each of {MAX_LAYERS} layers")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(one == value[0] for one in value):
        return value[0]
    return value


def _common(model: Model, fields: Fields, architecture: str, **more: Any) -> dict[str, Any]:
    table = model.tensors.get(EMBEDDING)
    if table is None or len(table.shape) != 2:
        raise BadTask(f"gguf.tensor {EMBEDDING}", "missing, or no matrix")
    width, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    if not width or not heads:
        raise BadTask("embedding_length", "embedding_length and attention.head_count must be above 0")
    head = fields.integer("attention.key_length", width // heads)
    fields.only("attention.value_length", head)
    positions = fields.integer("context_length")
    return {
        "architectures": [architecture],
        "vocab_size": table.shape[0],
        "hidden_size": width,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": positions,
        "rms_norm_eps": _needed(fields, "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in model.tensors,
        "rope_parameters": _rope(model, fields, head, positions),
        **more,
    }


def _needed(fields: Fields, name: str) -> float:
    value = fields.needed(name)
    if type(value) is not float:
        raise BadTask(name, "not a number")
    return value


def _rope(model: Model, fields: Fields, head: int, positions: int) -> dict[str, Any]:
    turning = fields.integer("rope.dimension_count", head)
    found: dict[str, Any] = {"rope_theta": fields.pop("rope.freq_base", 10_000.0)}
    if turning != head and head:
        part = turning / head
        found["partial_rotary_factor"] = part if int(head * part) == turning else math.nextafter(part, 1)
    kind, linear = fields.pop("rope.scaling.type", "none"), fields.pop("rope.scale_linear", 1.0)
    factor, original = fields.pop("rope.scaling.factor"), fields.pop("rope.scaling.original_context_length")
    if model.architecture == "phi3" and LONG in model.tensors:
        return found | {
            "rope_type": "longrope",
            "long_factor": _factors(model, LONG, turning),
            "short_factor": _factors(model, SHORT, turning),
            "attention_factor": fields.pop("rope.scaling.attn_factor"),
            "original_max_position_embeddings": original or positions,
        }
    if FACTORS in model.tensors:  # what Llama 3 makes of its angles, worked out
        if kind not in ("none", "llama3"):
            raise BadTask("rope.scaling.type", f"{str(kind)[:40]} beside {FACTORS}")
        factors = _factors(model, FACTORS, turning)
        return found | {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": positions,
        }
    if linear not in (0.0, 1.0):
        kind, factor = "linear", linear
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return found | {"rope_type": "default"}
    if kind == "linear":
        return found | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        betas = {name: fields.pop(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
        said = {"factor": factor, "original_max_position_embeddings": original, **betas}
        return found | {"rope_type": "yarn"} | {name: value for name, value in said.items() if value is not None}
    raise BadTask("rope.scaling.type", f"{str(kind)[:40]} is not supported, only none, linear and yarn")


def _factors(model: Model, name: str, turning: int) -> list[float]:
    """One for each wavelength, of the fewest digits."""
    placed = model.tensors.get(name)
    if placed is None or placed.type.name != "F32" or placed.shape != (turning // 2,) or turning // 2 > _MAX_FACTORS:
        raise BadTask(f"gguf.tensor {name}", f"missing, or no {turning // 2} numbers of F32")
    numbers = next(Rows((placed,), placed.count).made(0, placed.count, torch.float32))
    return [float(str(one)) for one in numbers.numpy()]


def _has(model: Model, name: str) -> bool:
    return f"blk.0.{name}" in model.tensors


def _llama(model: Model, fields: Fields) -> dict[str, Any]:
    """Llama, and those that are stored as it: Mistral, whose layers may slide, and Mixtral."""
    experts = fields.integer("expert_count", 0)
    window = fields.integer("attention.sliding_window", 0)
    chosen = fields.integer("expert_used_count", 0)
    if experts:
        more = {"num_local_experts": experts, "num_experts_per_tok": chosen, "sliding_window": window or None}
        return _common(model, fields, "MixtralForCausalLM", **more)
    if window:
        return _common(model, fields, "MistralForCausalLM", sliding_window=window)
    return _common(model, fields, "LlamaForCausalLM", attention_bias=_has(model, "attn_q.bias"))


def _qwen2(model: Model, fields: Fields) -> dict[str, Any]:
    return _common(model, fields, "Qwen2ForCausalLM")


def _qwen3(model: Model, fields: Fields) -> dict[str, Any]:
    return _common(model, fields, "Qwen3ForCausalLM", attention_bias=_has(model, "attn_q.bias"))


def _qwen2moe(model: Model, fields: Fields) -> dict[str, Any]:
    gate, shared = _matrix(model, "ffn_gate_exps.weight"), _matrix(model, "ffn_gate_shexp.weight")
    return _common(
        model,
        fields,
        "Qwen2MoeForCausalLM",
        **_experts(fields, gate),
        qkv_bias=_has(model, "attn_q.bias"),
        norm_topk_prob=fields.flag("expert_weights_norm", False),
        shared_expert_intermediate_size=fields.integer("expert_shared_feed_forward_length", shared.shape[0]),
    )


def _qwen3moe(model: Model, fields: Fields) -> dict[str, Any]:
    return _common(
        model,
        fields,
        "Qwen3MoeForCausalLM",
        **_experts(fields, _matrix(model, "ffn_gate_exps.weight")),
        attention_bias=_has(model, "attn_q.bias"),
        norm_topk_prob=fields.flag("expert_weights_norm", True),
    )


def _experts(fields: Fields, gate: TensorEntry) -> dict[str, Any]:
    return {
        "num_experts": fields.integer("expert_count"),
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length", gate.shape[-2]),
    }


def _matrix(model: Model, name: str) -> TensorEntry:
    placed = model.tensors.get(f"blk.0.{name}")
    if placed is None or len(placed.shape) < 2:
        raise BadTask(f"gguf.tensor blk.0.{name}", "missing, or no matrix")
    return placed


def _phi3(model: Model, fields: Fields) -> dict[str, Any]:
    window = fields.integer("attention.sliding_window", 0)
    return _common(model, fields, "Phi3ForCausalLM", sliding_window=window or None)


def _gemma(model: Model, fields: Fields) -> dict[str, Any]:
    return _common(model, fields, "GemmaForCausalLM")


_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the size whose scores are divided by another root than that of a head's dimensions."""


def _scaled(model: Model, found: Mapping[str, Any]) -> int:
    """query_pre_attn_scalar, which files do not say."""
    wide = found["num_hidden_layers"] == _27B[model.architecture]
    return int(found["hidden_size"] // found["num_attention_heads"] if wide else found["head_dim"])


def _gemma2(model: Model, fields: Fields) -> dict[str, Any]:
    found = _common(
        model, fields, "Gemma2ForCausalLM", sliding_window=fields.integer("attention.sliding_window", 4_096)
    )
    return found | {
        "query_pre_attn_scalar": _scaled(model, found),
        "attn_logit_softcapping": fields.pop("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.pop("final_logit_softcapping", 30.0),
    }


def _gemma3(model: Model, fields: Fields) -> dict[str, Any]:
    pattern = fields.pop("attention.sliding_window_pattern", 6)
    near = fields.pop("rope.freq_base_swa", 10_000.0)
    window = fields.integer("attention.sliding_window", 1_024)
    found = _common(model, fields, "Gemma3ForCausalLM", sliding_window=window)
    layers = fields.layers(found)
    if isinstance(pattern, list):
        if len(pattern) != layers or any(type(one) is not bool for one in pattern):
            raise BadTask("attention.sliding_window_pattern", f"does not say of {layers} layers whether each slides")
        slides: list[bool] = pattern
    elif type(pattern) is int and pattern > 0:
        slides = [(layer + 1) % pattern > 0 for layer in range(layers)]
    else:
        raise BadTask("attention.sliding_window_pattern", "neither a whole number above 0 nor a list")
    far = found["rope_parameters"]
    return found | {
        "layer_types": [SLIDING if one else FULL for one in slides],
        "query_pre_attn_scalar": _scaled(model, found),
        "final_logit_softcapping": fields.pop("final_logit_softcapping"),
        "rope_parameters": {FULL: far, SLIDING: {"rope_type": "default", "rope_theta": near}},
    }


def _gpt_oss(model: Model, fields: Fields) -> dict[str, Any]:
    gate = _matrix(model, "ffn_gate_exps.weight")
    if gate.type.name != "MXFP4":
        raise Unsupported(
            "gguf.tensor blk.0.ffn_gate_exps.weight", f"{gate.type.name}: gpt-oss is read with MXFP4 only"
        )
    inner = fields.integer("expert_feed_forward_length", gate.shape[-2])
    fields.default("feed_forward_length", inner)
    found = _common(
        model,
        fields,
        "GptOssForCausalLM",
        num_local_experts=fields.integer("expert_count"),
        num_experts_per_tok=fields.integer("expert_used_count"),
        sliding_window=fields.integer("attention.sliding_window", 128),
        attention_bias=_has(model, "attn_q.bias"),
        quantization_config={"quant_method": "mxfp4"},
    )
    rope = found["rope_parameters"]
    if rope["rope_type"] == "yarn":
        rope["truncate"] = False
    return found | {"intermediate_size": inner}


_ARCHITECTURES: dict[str, Callable[[Model, Fields], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
}
