"""A decoder's parameters as they stand in memory, by what they do: what is loaded, counted and computed with.

`families` say from which tensors of a checkpoint each is put together. Matrices are [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from nodewire.llm.config import Blocks, DecoderConfig, Experts


@dataclass(frozen=True, slots=True)
class Parameter:
    """`exact` ones are float32 whatever the task computes in: they are small, and much follows from them.

    `offset` is added to what is stored. Those in `blocks` of whole numbers stay so (nodewire.llm.quant).
    """

    shape: tuple[int, ...]
    exact: bool = False
    offset: int = 0
    blocks: Blocks | None = None

    @property
    def count(self) -> int:
        return prod(self.shape)


Parameters = dict[str, Parameter]

NARROW = 1_024


def lies_in_columns(role: str, parameter: Parameter) -> bool:
    """Whether a layer's matrix of float32 is kept column after column on a CPU: a row times it is up to twice as quick
    so where rows are short, for a sum over so few numbers is over before the kernel is at its best; but not where they
    are few."""
    if role not in ("qkv", "o", "gate_up") or parameter.blocks is not None:
        return False
    rows, width = parameter.shape
    return width <= min(NARROW, rows)


def of_layer(config: DecoderConfig, layer: int) -> Parameters:
    """One layer's: attention, then the MLP or the experts."""
    mixture = config.experts_of(layer)
    found = _attention(config) | (_mlp(config) if mixture is None else _mixture(config, mixture))
    if config.quantization is None or config.quantization.scheme == "nvfp4":
        return found
    return {role: replace(one, blocks=config.blocks_of(layer, role, one.shape[-1])) for role, one in found.items()}


@dataclass(frozen=True, slots=True)
class Ends:
    """Which of a decoder's two ends a task has: `embedding`, from token ids to hidden states; `head`, the final norm
    and the logits."""

    embedding: bool
    head: bool


BOTH, NEITHER = Ends(True, True), Ends(False, False)


def of_ends(config: DecoderConfig, ends: Ends = BOTH) -> Parameters:
    """Embedding, final norm, and a head unless it is the embedding: those of these ends."""
    table, tied = Parameter((config.vocab_size, config.hidden_size)), config.tie_word_embeddings
    found: Parameters = {}
    if ends.embedding or (ends.head and tied):
        found["embedding"] = table
    if ends.head:
        found["norm"] = _norm(config, config.hidden_size)
    return found | {"head": table} if ends.head and not tied else found


def _norm(config: DecoderConfig, width: int) -> Parameter:
    return Parameter((width,), exact=config.norm_plus_one, offset=int(config.norm_plus_one))


def _attention(config: DecoderConfig) -> Parameters:
    width, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    found = {
        "attention_norm": _norm(config, width),
        "qkv": Parameter((config.qkv_rows, width)),
        "o": Parameter((width, heads)),
    }
    if config.attention_bias:
        found["qkv_bias"] = Parameter((config.qkv_rows,))
    if config.output_bias:
        found["o_bias"] = Parameter((width,))
    if config.qk_norm:
        found |= {"q_norm": _norm(config, config.head_dim), "k_norm": _norm(config, config.head_dim)}
    if config.attention_sinks:
        found["sinks"] = Parameter((config.num_attention_heads,), exact=True)
    if config.sandwich_norms:
        found["attention_out_norm"] = _norm(config, width)
    return found


def _mlp(config: DecoderConfig) -> Parameters:
    width, inner = config.hidden_size, config.intermediate_size
    return _mlp_norms(config) | {"gate_up": Parameter((2 * inner, width)), "down": Parameter((width, inner))}


def _mlp_norms(config: DecoderConfig) -> Parameters:
    found = {"mlp_norm": _norm(config, config.hidden_size)}
    return found | {"mlp_out_norm": _norm(config, config.hidden_size)} if config.sandwich_norms else found


def _mixture(config: DecoderConfig, mixture: Experts) -> Parameters:
    width, count, inner = config.hidden_size, mixture.num_experts, mixture.moe_intermediate_size
    found = _mlp_norms(config) | {
        "router": Parameter((count, width), exact=True),
        "experts_gate_up": Parameter((count, 2 * inner, width)),
        "experts_down": Parameter((count, width, inner)),
    }
    if mixture.bias:
        found |= {
            "router_bias": Parameter((count,), exact=True),
            "experts_gate_up_bias": Parameter((count, 2 * inner)),
            "experts_down_bias": Parameter((count, width)),
        }
    if mixture.scoring == "sigmoid":
        found["router_correction"] = Parameter((count,), exact=True)
    if mixture.shared_intermediate_size:
        shared = mixture.shared_intermediate_size
        found |= {"shared_gate_up": Parameter((2 * shared, width)), "shared_down": Parameter((width, shared))}
    if mixture.shared_gate:
        found["shared_gate"] = Parameter((1, width))
    return found
