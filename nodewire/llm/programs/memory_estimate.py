"""How much memory a decoder's task takes: pure sums over its numbers, made before any byte is taken.

The figures count what PyTorch allocates above an empty worker: weights, caches, tables and the largest set of
intermediate tensors alive at once (a worker computes one frame at a time). CPU attention is the fused kernel, which
never holds a whole score matrix, unless scores are capped or have sinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from nodewire.llm.families import layer_pieces
from nodewire.llm.spec import quant_memory
from nodewire.llm.spec.parameters import (
    BOTH,
    NEITHER,
    TURNED,
    Ends,
    Parameter,
    Parameters,
    lies_in_columns,
    of_ends,
    of_layer,
)
from nodewire.protocol.model.kv_pages import PAGE, pages_of
from nodewire.protocol.tensors.frame import BLOCK
from nodewire.weights.mxint8 import row_bytes

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig, Experts

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""The dtypes that a task may compute in."""
_LOOKED_UP = ("positions", "q_norm", "k_norm")
"""What no position is multiplied with, though it has rows and columns."""
HEAD_ROWS = 8
"""Whose logits a stage that has the head holds at a time."""
_EXACT_BYTES = 4
_LOAD_BYTES = 2 * 262_144  # the pieces in which weights are read, and allocator slack
_MXFP4_BYTES = 8_192 * 448  # blocks being decoded: packed, looked up, scaled (loader.MXFP4_BLOCKS)
_TOKENIZER_FACTOR = 16  # bytes that a loaded tokenizer takes per byte of its JSON, measured 3 to 14 (BPE, WordPiece)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one task, by what they are for."""

    weights: int
    caches: int
    work: int
    tokenizer: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.work + self.tokenizer

    @property
    def words(self) -> str:
        """For people, in MB."""
        parts = {"weights": self.weights, "KV": self.caches, "work": self.work, "tokenizer": self.tokenizer}
        return " + ".join(f"{word} {size / 1e6:.1f}" for word, size in parts.items() if size)


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """What a stage has room for: `slots` sessions of `positions`, a `block` of which is computed at once.

    `kv` is as programs say it.
    """

    slots: int
    positions: int
    block: int
    dtype: str
    kv: str | None = None


def stage(
    config: DecoderConfig,
    first: int,
    last: int,
    lanes: LaneSpec,
    ends: Ends = NEITHER,
) -> Footprint:
    """A stage of layers [first, last), with all of their experts, and pages for its `lanes`.

    It has `ends`, too, if it has any.
    """
    positions, dtype, kv = lanes.positions, lanes.dtype, lanes.kv
    item = ITEM_BYTES[dtype]
    block = min(lanes.block, positions)
    numbers = _numbers(config)
    quantized = [one for layer in range(first, last) for one in _quantized(config, layer)]
    each, fixed = quant_memory.while_multiplying(quantized, item)
    plain, exact = (sum(layer[which] for layer in numbers[first:last]) for which in (0, 1))
    rows = positions + config.short_positions(positions)
    tables = rows * (config.rotary * 4 * (2 if config.rope_local_base_freq else 1) + 8)
    work = (
        block * (_work(config, first, last, positions, block, item) + each)
        + fixed
        + 2 * positions * config.hidden_size * item
        + (_read(config, positions, item) if kv is not None else 0)
    )
    if ends.head:
        work = max(work, HEAD_ROWS * config.vocab_size * (item + _EXACT_BYTES), _turned_ends(config, ends, item))
    plain_ends, exact_ends = _counted(of_ends(config, ends))
    plain, exact = plain + plain_ends, exact + exact_ends
    return Footprint(
        weights=plain * item + exact * _EXACT_BYTES + sum(_in_blocks(config, item)[first:last]),
        caches=lanes.slots * pages_of(positions) * page_bytes(config, last - first, dtype=dtype, kv=kv) + tables,
        work=max(work, _loading(config, item), quant_memory.while_loading(quantized)) + _LOAD_BYTES,
    )


def page_bytes(config: DecoderConfig, layers: int, *, dtype: str, kv: str | None = None) -> int:
    """A page of so many layers, 64 positions of keys and values, or of latents."""
    row = ITEM_BYTES[dtype] * config.head_dim if kv is None else row_bytes(config.head_dim)
    return layers * config.sides * PAGE * config.num_key_value_heads * row


def captured(config: DecoderConfig, lanes: int, rows: int, cells: int, item: int) -> int:
    """Bytes that a captured decode step takes at once (kv/static_buffers.py).

    It has so many lanes of so many rows and cells each. The cells are copied, which a stage's own steps do not; `item`
    is the bytes of a number.
    """
    group = config.num_attention_heads // config.num_key_value_heads
    copied = 2 * config.sides * lanes * cells * config.num_key_value_heads * config.head_dim * item
    each = 10 + group * (1 + item)  # of a row and a cell: what it sees, as the kernels take it
    if config.attention_sinks or config.attn_logit_softcapping:
        each += config.num_attention_heads * (2 * _EXACT_BYTES + item)
    each += _biases(config)
    work = _work(config, 0, config.num_hidden_layers, cells, rows, item)
    mixture = config.experts
    chosen = 0
    if mixture is not None:  # experts' matrices, copied, or what all of them make of all rows
        n, inner = lanes * rows, mixture.moe_intermediate_size
        matrices = min(n * mixture.num_experts_per_tok, mixture.num_experts // 3) * 3 * inner * config.hidden_size
        chosen = (matrices + n * mixture.num_experts * (6 * inner + 2 * config.hidden_size)) * item
    return copied + lanes * rows * (cells * each + work) + chosen


def driver(config: DecoderConfig, *, positions: int, dtype: str, tokenizer_bytes: int, ends: Ends = BOTH) -> Footprint:
    """A driver with the model's ends, or none; sessions hold ids only."""
    item = ITEM_BYTES[dtype]
    frames = positions * (config.hidden_size * item + 2 * 8)  # the prompt's hidden states and ids
    sampling = config.vocab_size * (item + 4 + 4 * 8)
    plain, exact = _counted(of_ends(config, ends))
    return Footprint(
        weights=plain * item + exact * _EXACT_BYTES,
        caches=0,
        work=max(frames + sampling, _turned_ends(config, ends, item)) + _LOAD_BYTES,
        tokenizer=tokenizer_bytes * _TOKENIZER_FACTOR,
    )


def stage_flops(config: DecoderConfig, first: int, last: int, *, positions: int) -> int:
    """Floating-point operations per position, attention at half of the context; of experts those that are chosen."""
    attention = 2 * config.num_attention_heads * config.head_dim
    seen = sum(
        min(positions, 2 * (config.sliding_window or 0)) if config.slides(n) else positions for n in range(first, last)
    )
    return sum(2 * used for _, _, used in _numbers(config)[first:last]) + attention * seen


def head_flops(config: DecoderConfig) -> int:
    """Floating-point operations per position of the head, wherever it is."""
    return 2 * config.vocab_size * config.hidden_size


@lru_cache(maxsize=8)
def _numbers(config: DecoderConfig) -> list[tuple[int, int, int]]:
    """Of each layer its parameters, and those of them that stay float32 (not among the first).

    And how many of its matrices' numbers one position is multiplied with.
    """
    return [(*_counted(found), _used(found, config, n)) for n, found in enumerate(_layers(config))]


def _layers(config: DecoderConfig) -> list[Parameters]:
    return [of_layer(config, layer) for layer in range(config.num_hidden_layers)]


def _quantized(config: DecoderConfig, layer: int) -> list[Parameter]:
    """A layer's parameters that stay in blocks."""
    if config.quantization is None:
        return []
    return [one for one in of_layer(config, layer).values() if one.blocks is not None]


@lru_cache(maxsize=8)
def _in_blocks(config: DecoderConfig, item: int) -> list[int]:
    """Bytes of each layer's matrices in blocks."""
    return [
        sum(quant_memory.nbytes(one, item) for one in _quantized(config, n)) for n in range(config.num_hidden_layers)
    ]


def _counted(parameters: Parameters) -> tuple[int, int]:
    exact = sum(parameter.count for parameter in parameters.values() if parameter.exact)
    plain = sum(one.count for one in parameters.values() if not one.exact and one.blocks is None)
    return plain, exact


def _used(parameters: Parameters, config: DecoderConfig, layer: int) -> int:
    mixture = config.experts_of(layer)
    whole = sum(one.count for role, one in parameters.items() if len(one.shape) == 2 and role not in _LOOKED_UP)
    if mixture is None:
        return whole
    experts = sum(parameter.count for parameter in parameters.values() if len(parameter.shape) == 3)
    return whole + experts * mixture.num_experts_per_tok // mixture.num_experts


def _work(config: DecoderConfig, first: int, last: int, positions: int, block: int, item: int) -> int:
    """Bytes of one position in a block.

    Residual before and after, normed input; then the larger of attention's tensors (projections, their rotated
    float32 copies, output; scores where they are computed by hand) and the MLP's; masks of both kinds of layers.
    """
    width = config.hidden_size
    further = config.sandwich_norms or config.parallel is not None
    residual = (5 if further else 4) * width * item + config.rotary * 12
    if config.norm_plus_one and item != _EXACT_BYTES:
        residual += 2 * width * _EXACT_BYTES
    heads, attention = config.num_attention_heads * config.head_dim, _attention(config, item)
    if config.attention_sinks or config.attn_logit_softcapping:
        group = config.num_attention_heads // config.num_key_value_heads
        attention += heads * item + group * positions * (_EXACT_BYTES if item == _EXACT_BYTES else _EXACT_BYTES + item)
    inner = max(_inner(config, config.experts_of(layer), item) for layer in range(first, last))
    mask = positions * (2 + item)
    if config.sliding_window is not None and positions > config.sliding_window:
        mask += min(positions, config.sliding_window + block) * (2 + item)
    mask += positions * _biases(config)
    return residual + max(attention, inner) + mask


def _attention(config: DecoderConfig, item: int) -> int:
    """Bytes of one position in the attention: what is projected, turned in float32, and put out.

    Of latents also the queries that are multiplied with the keys' matrices, and what they attended to.
    """
    heads, latent = config.num_attention_heads, config.latent
    if latent is None:
        return (config.qkv_rows + heads * config.head_dim) * item + 3 * config.qkv_rows * 4
    each = 2 * latent.kv_lora_rank + 2 * config.head_dim + latent.qk_rope_head_dim + 2 * latent.v_head_dim
    numbers = config.qkv_rows + config.q_rows + (latent.q_lora_rank or 0) + 2 * config.head_dim + heads * each
    return numbers * item + 3 * heads * latent.qk_rope_head_dim * 4


def _biases(config: DecoderConfig) -> int:
    """Bytes of a row and a cell that ALiBi's sums with scores take, and the distance while they are made."""
    return 0 if config.alibi is None else config.num_attention_heads * _EXACT_BYTES + 8


def _inner(config: DecoderConfig, mixture: Experts | None, item: int) -> int:
    """Bytes of one position in the MLP: gate and up, and what is made of them; with experts all may go to the same."""
    tensors = 6 if config.hidden_act == "clamped_swiglu" else 3
    if mixture is None:
        return tensors * config.intermediate_size * item
    routing = 4 * mixture.num_experts * 4 + config.hidden_size * 4 + 40 * mixture.num_experts_per_tok
    widest = max(mixture.moe_intermediate_size, mixture.shared_intermediate_size)
    return tensors * widest * item + 4 * config.hidden_size * item + routing


def _read(config: DecoderConfig, positions: int, item: int) -> int:
    """Bytes of one layer's keys and values, widened as a session of so many positions reads them, and their units."""
    return 2 * positions * config.num_key_value_heads * (config.head_dim * item + 8 * -(-config.head_dim // BLOCK))


def _turned_ends(config: DecoderConfig, ends: Ends, item: int) -> int:
    """Bytes beside a head that is kept in columns while it is read."""
    found = of_ends(config, ends).items() if item == _EXACT_BYTES else ()
    return max((min(one.count, TURNED) * item for role, one in found if lies_in_columns(role, one)), default=0)


def _loading(config: DecoderConfig, item: int) -> int:
    """Bytes besides the weights while they are read: what is stored otherwise than it is kept."""
    layer = of_layer(config, 0).items() if item == _EXACT_BYTES else ()
    turned = max((one.count * item for role, one in layer if lies_in_columns(role, one)), default=0)
    return max(turned, _decoding(config, item))


@lru_cache(maxsize=8)
def _decoding(config: DecoderConfig, item: int) -> int:
    """Bytes beside a parameter while its pieces are put in order."""
    if config.quantization is not None and config.quantization.scheme == "nvfp4":
        return _MXFP4_BYTES
    if config.experts is not None and config.experts.stored == "mxfp4":
        return _MXFP4_BYTES
    layers = {0, config.num_hidden_layers - 1}
    pieces = (piece for layer in layers for found in layer_pieces(config, layer).values() for piece in found)
    return max(piece.beside for piece in pieces) * item  # of a head in blocks fewer, which are as wide
