"""The MLP: down(act(gate x) * up x), with gate and up in one matrix; or down(act(up x)) of one that has no gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.quant.matrix import Matrix, linear

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig

Gate = Callable[[Tensor], Tensor]
"""[n, 2 * inner] (gate, then up) to [n, inner], or [n, inner] (up) of an MLP that has no gate; what came in may be
overwritten."""

_SWIGLU_ALPHA = 1.702


_ACTIVATIONS: Mapping[str, Gate] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def gate_of(config: DecoderConfig) -> Gate:
    if not config.gated:
        return _ACTIVATIONS[config.hidden_act]
    if config.hidden_act == "clamped_swiglu":
        limit = float(config.swiglu_limit or 0)
        return lambda both: _clamped(both, limit)
    return silu if config.hidden_act == "silu" else partial(_gated, _ACTIVATIONS[config.hidden_act])


def silu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate).mul_(up)


def _gated(activation: Gate, both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return activation(gate).mul_(up)


def _clamped(both: Tensor, limit: float) -> Tensor:
    """gpt-oss: gate and up alternate; gate is at most `limit`, up within it on both sides and one more."""
    gate, up = both[..., ::2].clamp(max=limit), both[..., 1::2].clamp(-limit, limit)
    return (gate * _SWIGLU_ALPHA).sigmoid_().mul_(gate).mul_(up.add_(1))


class Mlp:
    def __init__(
        self,
        gate_up: Matrix,
        down: Matrix,
        gate: Gate,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        self.gate_up, self.down, self.gate = gate_up, down, gate
        self.gate_up_bias, self.down_bias = gate_up_bias, down_bias

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] in and out."""
        return linear(self.gate(linear(x, self.gate_up, self.gate_up_bias)), self.down, self.down_bias)
