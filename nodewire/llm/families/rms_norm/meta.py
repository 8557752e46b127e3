"""Llama as Meta gives it out: params.json, and tensors whose pairs of turning dimensions lie beside each other.

https://github.com/meta-llama/llama-models. Positions turn alike once the rows of query and key are put in halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.llm.families.fields.tensor_names import Piece, Pieces, interleaved

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields
    from nodewire.llm.spec.config import DecoderConfig

ENDS = EMBEDDING, FINAL_NORM, HEAD = "tok_embeddings.weight", "norm.weight", "output.weight"

_LLAMA2_CONTEXT, _LLAMA3_CONTEXT, _STRETCHED_CONTEXT = 4_096, 8_192, 131_072


def parse(fields: Fields, vocabulary: int, *, tied: bool) -> dict[str, Any]:
    """The fields of a DecoderConfig, unchecked; `vocabulary` is that of the embedding, for files that say -1.

    Files say no context: it is that of the Llama whose angles they have.

    Raises:
        BadTask: a field is missing, unknown, or asks for what the layers do not compute.

    """
    width, heads = fields.integer("dim"), fields.integer("n_heads")
    if not width or not heads:
        raise BadTask("dim", "dim and n_heads must be above 0")
    said = fields.pop("vocab_size", -1)
    stretched, theta = fields.flag("use_scaled_rope", False), fields.number("rope_theta", 10_000.0)
    context = _STRETCHED_CONTEXT if stretched else _LLAMA3_CONTEXT if theta == "500000.0" else _LLAMA2_CONTEXT
    scaling = {
        "rope_type": "llama3",
        "factor": fields.number("rope_scaling_factor", 8.0),
        "low_freq_factor": "1.0",
        "high_freq_factor": fields.number("rope_high_freq_factor", 4.0),
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
    for field in ("moe", "quantization_args", "lora_args", "vision_chunk_size", "sliding_window"):
        fields.only(field, None)
    return {
        "family": "meta",
        "vocab_size": vocabulary if said == -1 else said,
        "hidden_size": width,
        "intermediate_size": _inner(fields, width),
        "num_hidden_layers": fields.integer("n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("n_kv_heads", heads),
        "head_dim": fields.integer("head_dim", width // heads),
        "max_position_embeddings": fields.integer("max_seq_len", context),
        "rms_norm_eps": fields.number("norm_eps", 1e-5),
        "rope_theta": theta,
        "rope_scaling": scaling if stretched else None,
        "tie_word_embeddings": tied,
    }


def _inner(fields: Fields, width: int) -> int:
    """Two thirds of four widths, times a multiplier, in whole multiples."""
    multiple, factor = fields.integer("multiple_of", 256), fields.optional("ffn_dim_multiplier")
    said = fields.optional_integer("hidden_dim")
    if said is not None:
        return said
    if not multiple:
        raise BadTask("multiple_of", "not above 0")
    inner = int(2 * 4 * width / 3)
    if factor is not None:
        inner = int(float(factor) * inner)
    return -(-inner // multiple) * multiple


def pieces(config: DecoderConfig, layer: int) -> Pieces:
    at, width, inner = f"layers.{layer}", config.hidden_size, config.intermediate_size
    queries, keys = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
    found: dict[str, tuple[Piece, ...]] = {
        "attention_norm": (Piece(f"{at}.attention_norm.weight", (width,)),),
        "qkv": (
            Piece(f"{at}.attention.wq.weight", (queries, width)),
            Piece(f"{at}.attention.wk.weight", (keys, width)),
            Piece(f"{at}.attention.wv.weight", (keys, width)),
        ),
        "o": (Piece(f"{at}.attention.wo.weight", (width, queries)),),
        "mlp_norm": (Piece(f"{at}.ffn_norm.weight", (width,)),),
        "gate_up": tuple(Piece(f"{at}.feed_forward.{which}.weight", (inner, width)) for which in ("w1", "w3")),
        "down": (Piece(f"{at}.feed_forward.w2.weight", (width, inner)),),
    }
    return interleaved(config, found)
