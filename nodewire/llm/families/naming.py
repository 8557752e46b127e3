"""Which of a checkpoint's tensors make up each parameter: the names that most families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

from nodewire.llm.config import Blocks, DecoderConfig, Experts

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


NUMBERS = "numbers"
"""Kept in any of the dtypes that weights may be stored in."""


class Kept(NamedTuple):
    """A tensor of a checkpoint: `dtype` is its name in torch, or NUMBERS."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor whose numbers are the next of a parameter's.

    `form`: "plain", in their order; "transposed", matrices [experts, in, out] that are kept [experts, out, in];
    "mxfp4", blocks of packed bytes whose scales are the tensor `scales`, one for each; "paired", rows of heads of
    `head_dim` in which the two that turn together lie beside each other, and are kept half a head apart.

    With `blocks` it is stored in these, as the compressed-tensors library lays them out
    (https://github.com/vllm-project/compressed-tensors); `shape` is that of the numbers, rows last.
    """

    name: str
    shape: tuple[int, ...]
    form: Literal["plain", "transposed", "mxfp4", "paired"] = "plain"
    scales: str = ""
    head_dim: int = 0
    blocks: Blocks | None = None

    @property
    def count(self) -> int:
        """Numbers that it gives: two for a byte of MXFP4."""
        return prod(self.shape) * (2 if self.form == "mxfp4" else 1)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.shape[1 if self.form == "transposed" else -1]

    @property
    def stem(self) -> str:
        """What the names of its blocks' tensors begin with."""
        return self.name.removesuffix(".weight")

    def quantized(self, blocks: Blocks) -> Piece:
        """The same numbers stored in blocks. Of transposed matrices it is the rows as they are kept."""
        experts = self.shape[:-2]
        rows, width = (self.shape[-1], self.shape[-2]) if self.form == "transposed" else self.shape[-2:]
        return replace(self, shape=(*experts, rows, width), form="plain", blocks=blocks)

    def stored(self) -> dict[str, Kept]:
        """The tensors of the checkpoint, by name."""
        if self.form == "mxfp4":
            return {self.name: Kept("uint8", self.shape), self.scales: Kept("uint8", self.shape[:-1])}
        if self.blocks is None:
            return {self.name: Kept(NUMBERS, self.shape)}
        (scheme, size), (*rows, width), at = self.blocks, self.shape, f"{self.stem}.weight"
        scales = {f"{at}_scale": Kept(NUMBERS, (*rows, width // size))}
        if scheme == "w8a8":
            return {at: Kept("int8", self.shape)} | scales
        if scheme == "nvfp4":
            return {
                f"{at}_packed": Kept("uint8", (*rows, width // 2)),
                f"{at}_scale": Kept("float8_e4m3fn", (*rows, width // size)),
                f"{at}_global_scale": Kept("float32", (1,)),
            }
        return {f"{at}_packed": Kept("int32", (*rows, width * self.blocks.bits // 32))} | scales


Pieces = Mapping[str, tuple[Piece, ...]]


def of_ends(
    config: DecoderConfig, embedding: str = EMBEDDING, norm: str = FINAL_NORM, head: str = HEAD
) -> dict[str, tuple[Piece, ...]]:
    """Embedding and final norm, and the head unless it is the embedding."""
    table = (config.vocab_size, config.hidden_size)
    found: dict[str, tuple[Piece, ...]] = {
        "embedding": (Piece(embedding, table),),
        "norm": (Piece(norm, (config.hidden_size,)),),
    }
    return found if config.tie_word_embeddings else found | {"head": (Piece(head, table),)}


def of_layer(config: DecoderConfig, layer: int) -> dict[str, tuple[Piece, ...]]:
    """One layer's, named as Llama names them, with the norms and experts that Gemma and Qwen have besides."""
    at = f"model.layers.{layer}"
    mixture = config.experts_of(layer)
    found = norms(config, at) | attention(config, f"{at}.self_attn")
    if mixture is None:
        return found | mlp(config, f"{at}.mlp", config.intermediate_size)
    return found | experts(config, mixture, f"{at}.mlp")


def norms(config: DecoderConfig, at: str) -> dict[str, tuple[Piece, ...]]:
    names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if config.sandwich_norms:
        names |= {
            "attention_out_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_out_norm": "post_feedforward_layernorm",
        }
    return {role: (Piece(f"{at}.{name}.weight", (config.hidden_size,)),) for role, name in names.items()}


def attention(config: DecoderConfig, at: str) -> dict[str, tuple[Piece, ...]]:
    width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    rows = {"q": queries, "k": keys, "v": keys}
    found = {
        "qkv": tuple(Piece(f"{at}.{which}_proj.weight", (count, width)) for which, count in rows.items()),
        "o": (Piece(f"{at}.o_proj.weight", (width, queries)),),
    }
    if config.attention_bias:
        found["qkv_bias"] = tuple(Piece(f"{at}.{which}_proj.bias", (count,)) for which, count in rows.items())
    if config.output_bias:
        found["o_bias"] = (Piece(f"{at}.o_proj.bias", (width,)),)
    if config.qk_norm:
        for which in ("q", "k"):
            found[f"{which}_norm"] = (Piece(f"{at}.{which}_norm.weight", (config.head_dim,)),)
    if config.attention_sinks:
        found["sinks"] = (Piece(f"{at}.sinks", (config.num_attention_heads,)),)
    return found


def mlp(config: DecoderConfig, at: str, inner: int, role: str = "") -> dict[str, tuple[Piece, ...]]:
    """A gated MLP; `role` begins the parameters' names."""
    width = config.hidden_size
    return {
        f"{role}gate_up": tuple(Piece(f"{at}.{which}_proj.weight", (inner, width)) for which in ("gate", "up")),
        f"{role}down": (Piece(f"{at}.down_proj.weight", (width, inner)),),
    }


def experts(
    config: DecoderConfig,
    mixture: Experts,
    at: str,
    *,
    shared: str = "shared_expert",
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
) -> dict[str, tuple[Piece, ...]]:
    """A mixture whose experts have tensors of their own."""
    width, inner = config.hidden_size, mixture.moe_intermediate_size
    each = [f"{at}.experts.{number}" for number in range(mixture.num_experts)]
    found: dict[str, tuple[Piece, ...]] = {
        "router": (Piece(f"{at}.gate.weight", (mixture.num_experts, width)),),
        "experts_gate_up": tuple(
            Piece(f"{one}.{which}.weight", (inner, width)) for one in each for which in (gate, up)
        ),
        "experts_down": tuple(Piece(f"{one}.{down}.weight", (width, inner)) for one in each),
    }
    if mixture.scoring == "sigmoid":
        found["router_correction"] = (Piece(f"{at}.gate.e_score_correction_bias", (mixture.num_experts,)),)
    if mixture.shared_intermediate_size:
        found |= mlp(config, f"{at}.{shared}", mixture.shared_intermediate_size, "shared_")
    if mixture.shared_gate:
        found["shared_gate"] = (Piece(f"{at}.{shared}_gate.weight", (1, width)),)
    return found
