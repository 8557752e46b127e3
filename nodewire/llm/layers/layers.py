"""A decoder's layers, put together from parts as its configuration says: norms, attention, MLP or experts.

A layer knows neither sessions nor where keys and values are kept: its rows come with a Past
(nodewire.llm.kv.attention_context). Every caller runs the same operations in the same shapes (a prompt in blocks, then
one position at a time), so that the split model and the unsplit one agree to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.llm.checkpoint.loader import Fill, load
from nodewire.llm.families import layer_pieces
from nodewire.llm.kv.batch_view import Chain
from nodewire.llm.layers.attention import Attention
from nodewire.llm.layers.experts import AllAtOnce, Mixture
from nodewire.llm.layers.fast_cpu_step import step_of
from nodewire.llm.layers.latent_attention import LatentAttention
from nodewire.llm.layers.mlp import Gate, Mlp, gate_of
from nodewire.llm.layers.norm import norm_of
from nodewire.llm.layers.rope import Angles, ropes
from nodewire.llm.quant import loader
from nodewire.llm.quant.matrix import kernel_of
from nodewire.llm.quant.row_product import choose
from nodewire.llm.spec.parameters import of_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor

    from nodewire.llm.kv.attention_context import Past
    from nodewire.llm.kv.sequence_cache import Lane
    from nodewire.llm.spec.config import DecoderConfig


class Feedforward(Protocol):
    def forward(self, x: Tensor) -> Tensor:
        """[n, width] in and out."""


class Layer:
    """One transformer layer; `layer` counts from the model's first, `place` from the stage's."""

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        place: int,
        dtype: torch.dtype,
        device: torch.device,
        fill: Fill,
        *,
        alone: bool = False,
    ) -> None:
        how = (of_layer(config, layer), layer_pieces(config, layer), fill, dtype, device)
        weights: dict[str, Any] = load(*how) | loader.load(*how, alone=alone)
        self._weights = weights
        mixture, gate = config.experts_of(layer), gate_of(config)
        self.slides, self.turns = config.slides(layer), config.turns(layer)
        self.attention: Attention | LatentAttention = (
            Attention(config, layer, place, weights, device)
            if config.latent is None
            else LatentAttention(config, config.latent, layer, place, weights, device)
        )
        self.mlp = _mlp(weights, gate) if mixture is None else Mixture(mixture, weights, gate)
        self.attention_norm, self.mlp_norm, self.attention_out_norm, self.mlp_out_norm = (
            norm_of(config, weights, role)
            for role in ("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm")
        )
        self.parallel = config.parallel is not None
        self.multiplier = None if config.residual_multiplier is None else float(config.residual_multiplier)
        self.embedding_norm = norm_of(config, weights, "embedding_norm")
        self.positions = weights.get("positions")
        self.step = step_of(self) if config.rotary == config.head_dim and self.turns else None

    def kernels(self) -> Iterator[tuple[str, str]]:
        """Of each matrix its role and shape, and what multiplies with it."""
        return filter(None, (kernel_of(role, one) for role, one in self._weights.items()))

    def forward(self, x: Tensor, angles: Angles, past: Past, mlp: Feedforward | None = None) -> Tensor:
        """Hidden states [n, width] of the past's rows after this layer; `angles` are those of their positions.

        `mlp` stands for the layer's own.
        """
        mlp = mlp or self.mlp
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.positions is not None:
            x = x + self.positions.index_select(0, past.positions)
        normed = x if self.attention_norm is None else self.attention_norm(x)
        y = self.attention.forward(normed, angles if self.turns else None, past)
        if self.parallel:
            return self._added(x, y.add_(mlp.forward(normed if self.mlp_norm is None else self.mlp_norm(x))))
        x = self._added(x, y if self.attention_out_norm is None else self.attention_out_norm(y))
        y = mlp.forward(x if self.mlp_norm is None else self.mlp_norm(x))
        return self._added(x, y if self.mlp_out_norm is None else self.mlp_out_norm(y))

    def _added(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y if self.multiplier is None else x.add(y, alpha=self.multiplier)


def _mlp(weights: Mapping[str, Any], gate: Gate) -> Mlp:
    return Mlp(weights["gate_up"], weights["down"], gate, weights.get("gate_up_bias"), weights.get("down_bias"))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """In what and where layers are computed.

    `alone`: of a model that this process decodes for itself (quant/kernel_choice.py).
    """

    dtype: torch.dtype
    device: torch.device
    alone: bool = False


class Layers:
    """Layers [first, last) of a decoder, run in blocks of `block` positions so that long prompts need no more memory.

    A Past, or a lane (a session's KV cache), is handed in, so that the same weights serve many sessions.
    """

    def __init__(
        self,
        config: DecoderConfig,
        first: int,
        last: int,
        *,
        positions: int,
        block: int,
        arithmetic: Arithmetic,
        fill: Fill,
    ) -> None:
        dtype, device, alone = arithmetic.dtype, arithmetic.device, arithmetic.alone
        self.config, self.block, self.item = config, block, dtype.itemsize
        self.layers = [
            Layer(config, first + place, place, dtype, device, fill, alone=alone) for place in range(last - first)
        ]
        choose(row for layer in self.layers if layer.step is not None for row in layer.step.rows)
        self.full, self.sliding = ropes(config, positions, device)

    def run(self, x: Tensor, past: Past) -> Tensor:
        """Hidden states [n, width] of the past's rows after the last layer."""
        full = sliding = self.full.at(past.angles)
        if self.sliding is not self.full:
            sliding = self.sliding.at(past.angles)
        if len(x) == 1 and isinstance(past, Chain):
            return self._step(x, full, sliding, past)
        for layer in self.layers:
            x = layer.forward(x, sliding if layer.slides else full, past)
        return x

    @property
    def kernels(self) -> dict[str, str]:
        """Of each role and shape of a matrix, what multiplies with it."""
        return dict(one for layer in self.layers for one in layer.kernels())

    @property
    def uncapturable(self) -> str | None:
        """What none can capture of these layers (llm/cuda_graphs/runner.py); None: nothing."""
        mixes = any(isinstance(layer.mlp, Mixture) and not layer.mlp.is_stacked for layer in self.layers)
        return "experts in blocks are chosen by the host" if mixes else None

    def captured(self, x: Tensor, past: Past) -> Tensor:
        """`run`, in operations that depend on nothing but the shapes of tensors."""
        full = sliding = self.full.at(past.angles)
        if self.sliding is not self.full:
            sliding = self.sliding.at(past.angles)
        for layer in self.layers:
            mlp = AllAtOnce(layer.mlp) if isinstance(layer.mlp, Mixture) else layer.mlp
            x = layer.forward(x, sliding if layer.slides else full, past, mlp)
        return x

    def _step(self, x: Tensor, full: Angles, sliding: Angles, past: Chain) -> Tensor:
        """`run` of a single row."""
        alone = {slides: (cos[0, 0], sin[0, 0]) for slides, (cos, sin) in ((False, full), (True, sliding))}
        for layer in self.layers:
            if layer.step is not None:
                x = layer.step.forward(x[0], alone[layer.slides], past)[None]
            else:
                x = layer.forward(x, sliding if layer.slides else full, past)
        return x

    def forward(self, hidden: Tensor, pos: int, lane: Lane, *, only_last: bool) -> Tensor:
        """[1, n, width] in, [1, n, width] out ([1, 1, width], the last position's, with `only_last`).

        Positions pos .. pos+n-1 of the lane are written; the input is left as it is.
        """
        rows = hidden[0]
        output = rows.new_empty(1 if only_last else len(rows), rows.shape[1])
        for start in range(0, len(rows), self.block):
            x = rows[start : start + self.block]
            x = self.run(x, Chain(lane, pos + start, len(x)))
            if not only_last:
                output[start : start + self.block] = x
        if only_last:
            output.copy_(x[-1:])
        return output[None]
