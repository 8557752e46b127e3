"""How much memory a decoder's task takes: pure sums over its numbers, made before any byte is taken.

The figures count what PyTorch allocates above an empty worker: weights, caches, tables and the largest set of
intermediate tensors alive at once (a worker computes one frame at a time). CPU attention is the fused kernel, which
never holds a whole score matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import driver_shapes, layer_shapes

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""The dtypes that a task may compute in."""
_LOAD_BYTES = 2 * 262_144  # the pieces in which weights are read, and allocator slack
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


def stage(
    config: DecoderConfig, first: int, last: int, *, slots: int, positions: int, block: int, dtype: str
) -> Footprint:
    """A stage of layers [first, last) with `slots` lanes of `positions`."""
    item = ITEM_BYTES[dtype]
    block = min(block, positions)
    heads, width = config.num_attention_heads * config.head_dim, config.hidden_size
    per_layer = sum(prod(shape) for shape in layer_shapes(config, first).values())
    per_lane = 2 * positions * config.num_key_value_heads * config.head_dim
    tables = positions * config.head_dim * 4
    # Of one position in a block: residual before and after, normed input; then the larger of attention's tensors
    # (projections, their rotated float32 copies, output) and the MLP's (gate and up, their product).
    attention = (config.qkv_rows + heads) * item + 3 * config.qkv_rows * 4
    mlp = 3 * config.intermediate_size * item
    per_position = 4 * width * item + max(attention, mlp)
    mask = positions * (1 + item) if positions > block else 0
    frames = 2 * positions * width * item
    return Footprint(
        weights=(last - first) * per_layer * item,
        caches=(last - first) * slots * per_lane * item + tables,
        work=block * (per_position + mask) + frames + _LOAD_BYTES,
    )


def driver(config: DecoderConfig, *, positions: int, dtype: str, tokenizer_bytes: int) -> Footprint:
    """A driver with embedding, final norm and head; sessions hold ids only."""
    item = ITEM_BYTES[dtype]
    frames = positions * (config.hidden_size * item + 2 * 8)  # the prompt's hidden states and ids
    sampling = config.vocab_size * (item + 4 + 4 * 8)
    return Footprint(
        weights=sum(prod(shape) for shape in driver_shapes(config).values()) * item,
        caches=0,
        work=frames + sampling + _LOAD_BYTES,
        tokenizer=tokenizer_bytes * _TOKENIZER_FACTOR,
    )


def stage_flops(config: DecoderConfig, first: int, last: int, *, positions: int) -> int:
    """Floating-point operations per position, attention at half of the context."""
    weights = sum(prod(shape) for shape in layer_shapes(config, first).values() if len(shape) == 2)
    attention = 2 * config.num_attention_heads * config.head_dim * positions
    return (last - first) * (2 * weights + attention)


def driver_flops(config: DecoderConfig) -> int:
    return 2 * config.vocab_size * config.hidden_size
