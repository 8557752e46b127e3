"""A decoder's parameters as they stand in memory, by what they do: what is loaded, counted and computed with.

`families` say from which tensors of a checkpoint each is put together. Matrices are [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.llm.spec.config import Blocks, DecoderConfig, Experts


@dataclass(frozen=True, slots=True)
class Parameter:
    """`exact` ones are float32 whatever the task computes in: they are small, and much follows from them.

    `offset` is added to what is stored. Those in `blocks` of whole numbers stay so (nodewire.llm.quant). Of those that
    are `looked_up` rows are taken, and nothing is multiplied with them.
    """

    shape: tuple[int, ...]
    exact: bool = False
    offset: int = 0
    blocks: Blocks | None = None
    looked_up: bool = False

    @property
    def count(self) -> int:
        return prod(self.shape)


Parameters = dict[str, Parameter]

TURNED = 262_144
"""Numbers that are read at once of a matrix that is kept in columns, or a row if it has more."""
_IN_COLUMNS = frozenset(("qkv", "o", "gate_up", "down", "embedding", "head"))


def lies_in_columns(role: str, parameter: Parameter) -> bool:
    """Whether a matrix of float32 is kept column after column on a CPU.

    A row times it is up to twice as quick so: all sums grow side by side, none is over before the kernel is at its
    best. And threads can share it (nodewire.llm.quant.row_product).
    """
    return role in _IN_COLUMNS and not parameter.looked_up and parameter.blocks is None


def of_layer(config: DecoderConfig, layer: int) -> Parameters:
    """One layer's: attention, then the MLP or the experts.

    The first one has the norm of embeddings and learned positions, too.
    """
    mixture = config.experts_of(layer)
    found = _attention(config) | (_mlp(config) if mixture is None else _mixture(config, mixture))
    if config.embedding_norm and layer == 0:
        found |= _norms(config, "embedding_norm")
    if config.learned_positions and layer == 0:
        found["positions"] = Parameter((config.max_position_embeddings, config.hidden_size))
    if config.quantization is None or config.quantization.scheme == "nvfp4":
        return found
    return {role: replace(one, blocks=config.blocks_of(layer, role, one.shape[-1])) for role, one in found.items()}


@dataclass(frozen=True, slots=True)
class Ends:
    """Which of a decoder's two ends a task has.

    `embedding` is from token ids to hidden states; `head` is the final norm and the logits.
    """

    embedding: bool
    head: bool


BOTH, NEITHER = Ends(True, True), Ends(False, False)


def of_ends(config: DecoderConfig, ends: Ends = BOTH) -> Parameters:
    """Embedding, final norm, and a head unless it is the embedding: those of these ends."""
    table, tied = Parameter((config.vocab_size, config.hidden_size)), config.tie_word_embeddings
    found: Parameters = {}
    if ends.embedding or (ends.head and tied):
        found["embedding"] = replace(table, looked_up=not (ends.head and tied))
    if ends.head:
        found |= _norms(config, "norm")
    return found | {"head": table} if ends.head and not tied else found


def _norm(config: DecoderConfig, width: int) -> Parameter:
    return Parameter((width,), exact=config.norm_plus_one, offset=int(config.norm_plus_one))


def _norms(config: DecoderConfig, *roles: str) -> Parameters:
    """Norms of the model's width, with their biases."""
    width = config.hidden_size
    biases = {f"{role}_bias": Parameter((width,)) for role in roles if config.norm_bias}
    return {role: _norm(config, width) for role in roles} | biases


def norm_roles(config: DecoderConfig) -> tuple[str, ...]:
    """The norms of a layer's attention and MLP."""
    before: tuple[str, ...] = ("attention_norm", "mlp_norm") if config.pre_norms else ()
    if config.parallel == "one_norm":
        before = ("attention_norm",)
    return (*before, "attention_out_norm", "mlp_out_norm") if config.sandwich_norms else before


def _query_and_key(config: DecoderConfig) -> Parameters:
    """Their norms."""
    dim, found = config.head_dim, {}
    for role, heads in (("q_norm", config.num_attention_heads), ("k_norm", config.num_key_value_heads)):
        shape = {"head": (dim,), "each_head": (heads, dim), "heads": (heads * dim,)}[config.qk_norm_of]
        found[role] = Parameter(shape, exact=config.norm_plus_one, offset=int(config.norm_plus_one))
    return found


def _attention(config: DecoderConfig) -> Parameters:
    width, latent = config.hidden_size, config.latent
    found = _norms(config, *norm_roles(config)) | {
        "qkv": Parameter((config.qkv_rows, width)),
        "o": Parameter((width, config.attended)),
    }
    if latent is not None:
        rows = config.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        found |= {"kv_a_norm": Parameter((latent.kv_lora_rank,)), "kv_b": Parameter((rows, latent.kv_lora_rank))}
        if latent.q_lora_rank is not None:
            found["q_a_norm"] = Parameter((latent.q_lora_rank,))
            found["q_b"] = Parameter((config.q_rows, latent.q_lora_rank))
    if config.attention_bias:
        found["qkv_bias"] = Parameter((config.qkv_rows,))
    if config.output_bias:
        found["o_bias"] = Parameter((width,))
    if config.qk_norm:
        found |= _query_and_key(config)
    if config.attention_sinks:
        found["sinks"] = Parameter((config.num_attention_heads,), exact=True)
    return found


def _mlp(config: DecoderConfig) -> Parameters:
    """`gate_up`: of an MLP without a gate, up alone."""
    width, inner = config.hidden_size, config.intermediate_size
    rows = 2 * inner if config.gated else inner
    found = {"gate_up": Parameter((rows, width)), "down": Parameter((width, inner))}
    return found | {"gate_up_bias": Parameter((rows,)), "down_bias": Parameter((width,))} if config.mlp_bias else found


def _mixture(config: DecoderConfig, mixture: Experts) -> Parameters:
    width, count, inner = config.hidden_size, mixture.num_experts, mixture.moe_intermediate_size
    found = {
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
