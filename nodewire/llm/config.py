"""A decoder's shape, read from a Hugging Face config.json; every number is bounded before it is used as a size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadInput, BadTask
from nodewire.protocol.schema import Schema

MAX_CONFIG_BYTES = 1_000_000


class DecoderConfig(Schema):
    """The Llama family's shape. `eps_e12` is RMSNorm's epsilon times 10**12: documents hold no floats."""

    ERROR: ClassVar[type[BadInput]] = BadTask

    family: Literal["llama"] = "llama"
    vocab: int = Field(ge=2, le=2_000_000)
    hidden: int = Field(ge=2, le=65_536)
    intermediate: int = Field(ge=1, le=1_048_576)
    layers: int = Field(ge=1, le=1_024)
    heads: int = Field(ge=1, le=1_024)
    kv_heads: int = Field(ge=1, le=1_024)
    head_dim: int = Field(ge=2, le=1_024, multiple_of=2)
    context: int = Field(ge=1, le=16_777_216)
    eps_e12: int = Field(ge=0, le=10**12)
    rope_theta: int = Field(ge=1, le=10**12)
    tied: bool
    eos: tuple[int, ...] = Field(default=(), max_length=16)

    @property
    def eps(self) -> float:
        return self.eps_e12 / 1e12

    def model_post_init(self, context: Any) -> None:
        if self.heads % self.kv_heads:
            raise ValueError("kv_heads: does not divide heads")


def read_config(folder: Path) -> DecoderConfig:
    """The shape of the model in `folder`.

    Raises:
        BadInput: no readable config.json, an architecture or an option of it that is not served.
        BadTask: a number is missing or out of range.
    """
    path = folder / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise BadInput("config.json", "more than 1 MB")
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadInput("config.json", f"cannot be read ({error})") from error
    if not isinstance(raw, dict) or raw.get("architectures") != ["LlamaForCausalLM"]:
        raise BadInput("architectures", "not LlamaForCausalLM")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise BadInput("rope_scaling", f"{rope.get('rope_type')!r} is not served")
    for name in ("attention_bias", "mlp_bias"):
        if raw.get(name):
            raise BadInput(name, "is not served")
    if raw.get("hidden_act", "silu") != "silu":
        raise BadInput("hidden_act", f"{raw['hidden_act']!r} is not served")
    eos = raw.get("eos_token_id")
    heads = raw.get("num_attention_heads")
    hidden = raw.get("hidden_size")
    head_dim = raw.get("head_dim") or (
        hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
    )
    theta = raw.get("rope_theta", rope.get("rope_theta", 10_000))
    eps = raw.get("rms_norm_eps", 1e-6)
    return DecoderConfig.from_document(
        {
            "family": "llama",
            "vocab": raw.get("vocab_size"),
            "hidden": hidden,
            "intermediate": raw.get("intermediate_size"),
            "layers": raw.get("num_hidden_layers"),
            "heads": heads,
            "kv_heads": raw.get("num_key_value_heads", heads),
            "head_dim": head_dim,
            "context": raw.get("max_position_embeddings"),
            "eps_e12": round(eps * 1e12) if isinstance(eps, int | float) else None,
            "rope_theta": int(theta) if isinstance(theta, int | float) else None,
            "tied": bool(raw.get("tie_word_embeddings", False)),
            "eos": eos if isinstance(eos, list) else [] if eos is None else [eos],
        }
    )
