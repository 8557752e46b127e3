"""Which of a checkpoint's tensors make up each parameter: the names that most families share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from nodewire.llm.spec.parameters import norm_roles

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Blocks, DecoderConfig, Experts

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


NUMBERS = "numbers"
"""Kept in any of the dtypes that weights may be stored in."""


class CheckpointTensor(NamedTuple):
    """A tensor of a checkpoint: `dtype` is its name in torch, or NUMBERS."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` rows that are kept from row `at` on, and stored from row `stored` on.

    With `pairs` these are a head of so many, of which the rows from `begin` on are taken once those that turn together
    are half a head apart.
    """

    at: int
    stored: int
    count: int
    begin: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor whose numbers are the next of a parameter's.

    `form`: "plain", in their order; "transposed", matrices [..., in, out] that are kept [..., out, in];
    "mxfp4", blocks of packed bytes whose scales are the tensor `scales`, one for each; "paired", rows of `heads` of
    `head_dim` in which the two that turn together lie beside each other, and are kept half a head apart; "grouped",
    rows of `heads` of keys, each after its queries and before its value, of which all queries are kept before the keys,
    and those before the values.

    With `blocks` it is stored in these, as the compressed-tensors library lays them out
    (https://github.com/vllm-project/compressed-tensors); `shape` is that of the numbers, rows last.
    """

    name: str
    shape: tuple[int, ...]
    form: Literal["plain", "transposed", "mxfp4", "paired", "grouped"] = "plain"
    scales: str = ""
    heads: int = 0
    head_dim: int = 0
    blocks: Blocks | None = None

    @property
    def count(self) -> int:
        """Numbers that it gives: two for a byte of MXFP4."""
        return prod(self.shape) * (2 if self.form == "mxfp4" else 1)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.shape[-2 if self.form == "transposed" else -1]

    @property
    def beside(self) -> int:
        """Numbers that lie beside the parameter while it is read."""
        if self.form == "transposed":
            return self.shape[-1] * self.shape[-2]
        return self.count // self.heads if self.form == "paired" else 0

    @property
    def stem(self) -> str:
        """What the names of its blocks' tensors begin with."""
        return self.name.removesuffix(".weight")

    def quantized(self, blocks: Blocks) -> Piece:
        """The same numbers stored in blocks. Of transposed matrices it is the rows as they are kept."""
        experts = self.shape[:-2]
        if self.form != "transposed":
            return replace(self, blocks=blocks)
        return replace(self, shape=(*experts, self.shape[-1], self.shape[-2]), form="plain", blocks=blocks)

    def stretches(self, first: int, last: int) -> Iterator[Stretch]:
        """Where rows [first, last), as they are kept, are stored."""
        if self.form not in ("paired", "grouped"):
            yield Stretch(0, first, last - first)
            return
        dim = self.head_dim
        for unit in range(first // dim, -(-last // dim)):
            begin, end = max(first, unit * dim), min(last, (unit + 1) * dim)
            if self.form == "paired":
                yield Stretch(begin - first, unit * dim, end - begin, begin - unit * dim, dim)
            else:
                yield Stretch(begin - first, self._grouped(unit) * dim + begin - unit * dim, end - begin)

    def _grouped(self, unit: int) -> int:
        """Which head of the tensor a kept one is: all queries, then the keys, then the values."""
        group = self.shape[0] // self.head_dim // self.heads - 2
        queries = self.heads * group
        if unit < queries:
            return unit // group * (group + 2) + unit % group
        kind, number = divmod(unit - queries, self.heads)
        return number * (group + 2) + group + kind

    def stored(self) -> dict[str, CheckpointTensor]:
        """The tensors of the checkpoint, by name."""
        if self.form == "mxfp4":
            return {
                self.name: CheckpointTensor("uint8", self.shape),
                self.scales: CheckpointTensor("uint8", self.shape[:-1]),
            }
        if self.blocks is None:
            return {self.name: CheckpointTensor(NUMBERS, self.shape)}
        (scheme, size), (*rows, width), at = self.blocks, self.shape, f"{self.stem}.weight"
        scales = {f"{at}_scale": CheckpointTensor(NUMBERS, (*rows, width // size))}
        if scheme == "w8a8":
            return {at: CheckpointTensor("int8", self.shape)} | scales
        if scheme == "nvfp4":
            return {
                f"{at}_packed": CheckpointTensor("uint8", (*rows, width // 2)),
                f"{at}_scale": CheckpointTensor("float8_e4m3fn", (*rows, width // size)),
                f"{at}_global_scale": CheckpointTensor("float32", (1,)),
            }
        return {f"{at}_packed": CheckpointTensor("int32", (*rows, width * self.blocks.bits // 32))} | scales


Pieces = Mapping[str, tuple[Piece, ...]]


def of_ends(
    config: DecoderConfig, embedding: str = EMBEDDING, norm: str = FINAL_NORM, head: str = HEAD
) -> dict[str, tuple[Piece, ...]]:
    """Embedding and final norm, and the head unless it is the embedding."""
    table = (config.vocab_size, config.hidden_size)
    found: dict[str, tuple[Piece, ...]] = {
        "embedding": (Piece(embedding, table),),
        **_norm(config, "norm", norm.removesuffix(".weight")),
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


NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
SANDWICH = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def norms(config: DecoderConfig, at: str, names: Mapping[str, str] | None = None) -> dict[str, tuple[Piece, ...]]:
    """Those of a layer's attention and MLP; `names` if they are not Llama's or Gemma's."""
    names = names or (SANDWICH if config.sandwich_norms else NORMS)
    found: dict[str, tuple[Piece, ...]] = {}
    for role in norm_roles(config):
        found |= _norm(config, role, f"{at}.{names.get(role, SANDWICH[role])}")
    return found


def _norm(config: DecoderConfig, role: str, stem: str) -> dict[str, tuple[Piece, ...]]:
    width = (config.hidden_size,)
    found: dict[str, tuple[Piece, ...]] = {role: (Piece(f"{stem}.weight", width),)}
    return found | {f"{role}_bias": (Piece(f"{stem}.bias", width),)} if config.norm_bias else found


def embedding_norm(config: DecoderConfig, stem: str) -> dict[str, tuple[Piece, ...]]:
    """The norm of embeddings, before layer 0."""
    return _norm(config, "embedding_norm", stem) if config.embedding_norm else {}


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
        for which, count in (("q", queries), ("k", keys)):
            rows_of_norm = config.head_dim if config.qk_norm_of == "head" else count
            found[f"{which}_norm"] = (Piece(f"{at}.{which}_norm.weight", (rows_of_norm,)),)
    if config.attention_sinks:
        found["sinks"] = (Piece(f"{at}.sinks", (config.num_attention_heads,)),)
    return found


def mlp(config: DecoderConfig, at: str, inner: int, role: str = "") -> dict[str, tuple[Piece, ...]]:
    """A gated MLP; `role` begins the parameters' names."""
    width = config.hidden_size
    found: dict[str, tuple[Piece, ...]] = {
        f"{role}gate_up": tuple(Piece(f"{at}.{which}_proj.weight", (inner, width)) for which in ("gate", "up")),
        f"{role}down": (Piece(f"{at}.down_proj.weight", (width, inner)),),
    }
    if config.mlp_bias and not role:
        found["gate_up_bias"] = tuple(Piece(f"{at}.{which}_proj.bias", (inner,)) for which in ("gate", "up"))
        found["down_bias"] = (Piece(f"{at}.down_proj.bias", (width,)),)
    return found


def ungated(
    config: DecoderConfig, up: str, down: str, form: Literal["plain", "transposed"] = "plain"
) -> dict[str, tuple[Piece, ...]]:
    """An MLP without a gate, of two modules."""
    width, inner = config.hidden_size, config.intermediate_size
    found: dict[str, tuple[Piece, ...]] = {
        "gate_up": (matrix(f"{up}.weight", inner, width, form),),
        "down": (matrix(f"{down}.weight", width, inner, form),),
    }
    if config.mlp_bias:
        found |= {"gate_up_bias": (Piece(f"{up}.bias", (inner,)),), "down_bias": (Piece(f"{down}.bias", (width,)),)}
    return found


def matrix(name: str, rows: int, width: int, form: Literal["plain", "transposed"] = "plain") -> Piece:
    return Piece(name, (width, rows) if form == "transposed" else (rows, width), form)


def fused(
    config: DecoderConfig,
    qkv: str,
    o: str,
    form: Literal["plain", "transposed", "grouped"] = "plain",
) -> dict[str, tuple[Piece, ...]]:
    """Attention of two modules: query, key and value in one, and the output."""
    width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    rows, is_grouped = config.qkv_rows, form == "grouped"

    def ordered(piece: Piece) -> Piece:
        grouping = replace(piece, form="grouped", heads=config.num_key_value_heads, head_dim=config.head_dim)
        return grouping if is_grouped else piece

    kind: Literal["plain", "transposed"] = "transposed" if form == "transposed" else "plain"
    found: dict[str, tuple[Piece, ...]] = {
        "qkv": (ordered(matrix(f"{qkv}.weight", rows, width, kind)),),
        "o": (matrix(f"{o}.weight", width, queries, kind),),
    }
    if config.attention_bias:
        found["qkv_bias"] = (ordered(Piece(f"{qkv}.bias", (rows,))),)
    if config.output_bias:
        found["o_bias"] = (Piece(f"{o}.bias", (width,)),)
    return found


def interleaved(config: DecoderConfig, pieces: Pieces) -> dict[str, tuple[Piece, ...]]:
    """The same, of a checkpoint in which the two dimensions that turn together lie beside each other."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}

    def paired(piece: Piece, which: str) -> Piece:
        return replace(piece, form="paired", heads=heads[which], head_dim=config.head_dim)

    found = dict(pieces)
    for role in ("qkv", "qkv_bias"):
        if role in found:
            q, k, v = found[role]
            found[role] = (paired(q, "q"), paired(k, "k"), v)
    for which in heads:
        if f"{which}_norm" in found:
            found[f"{which}_norm"] = tuple(paired(piece, which) for piece in found[f"{which}_norm"])
    return found


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
