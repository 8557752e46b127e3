"""A decode step: one row through a plain layer on a CPU, in as few operations as PyTorch has for it.

A small decoder's step is half what its operations cost besides their arithmetic, so there are 15 instead of 40: a norm
is a product and a scaling, a residual is added by the product before it, keys and values lie where both are kept.

Between its products a step computes in float32, whatever they take: on a CPU that is quicker than bfloat16. Rows come
in and go out in the task's dtype, so that a model says the same wherever it is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.layers.attention import Attention
from nodewire.llm.layers.mlp import Mlp, silu
from nodewire.llm.quant.matrix import BlockMatrix, Matrix
from nodewire.llm.quant.row_product import Exact, Row

if TYPE_CHECKING:
    from nodewire.llm.kv.batch_view import Chain
    from nodewire.llm.layers.norm import Norm
    from nodewire.llm.layers.rope import Angles


class LayerParts(Protocol):
    """The parts of a layer that its step reads. What a layer lacks is None."""

    @property
    def attention(self) -> object: ...
    @property
    def mlp(self) -> object: ...
    @property
    def attention_norm(self) -> Norm | None: ...
    @property
    def mlp_norm(self) -> Norm | None: ...
    @property
    def attention_out_norm(self) -> Norm | None: ...
    @property
    def mlp_out_norm(self) -> Norm | None: ...
    @property
    def parallel(self) -> bool: ...
    @property
    def multiplier(self) -> float | None: ...
    @property
    def embedding_norm(self) -> Norm | None: ...
    @property
    def positions(self) -> Tensor | None: ...


class Step:
    """A layer's own; made by `step_of`. What it works in is taken once, so only one step is computed at a time."""

    def __init__(
        self,
        attention: Attention,
        attention_norm: Norm,
        mlp_norm: Norm,
        qkv: Matrix,
        o: Matrix,
        gate_up: Matrix,
        down: Matrix,
    ) -> None:
        kv_heads, head_dim = attention.turning - attention.heads, attention.head_dim
        self._place, self._how, self._eps = attention.place, attention.how, attention_norm.eps
        self._qkv, self._o, self._gate_up, self._down = map(_product, (qkv, o, gate_up, down))
        products = (self._qkv, self._o, self._gate_up, self._down)
        self.rows = [one.of for one in products if isinstance(one, _Narrow) and isinstance(one.of, Row)]
        """Its plain matrices that are narrower than float32."""
        self._qkv_bias = attention.qkv_bias
        self._attention_norm, self._mlp_norm = attention_norm.weight.float(), mlp_norm.weight.float()
        self._zero, self._normed = torch.zeros(2, qkv.shape[1])
        self._row = torch.empty(qkv.shape[0])
        self._pairs = self._row[: attention.turning * head_dim].view(attention.turning, 2, -1)
        self._turned = torch.empty_like(self._pairs)
        queries = attention.heads * head_dim
        self._q = self._row[:queries].view(1, kv_heads, -1, head_dim)
        self._both = self._row[queries:].view(2, kv_heads, head_dim)
        self._gated = torch.empty(gate_up.shape[0])
        self._gate, self._up = self._gated.chunk(2)

    def forward(self, x: Tensor, angles: Angles, past: Chain) -> Tensor:
        """[width] in and out; `angles` are the row's, [1, rotary / 2] and [2, rotary / 2]."""
        cos, sin = angles
        dtype, x = x.dtype, x.float()
        self._qkv.times(self._norm(x, self._attention_norm), self._qkv_bias, self._row)
        pairs = self._pairs
        torch.addcmul(torch.mul(pairs, cos, out=self._turned), pairs.flip(1), sin, out=pairs)
        x = self._o.added(x, past.attend_alone(self._place, self._q.to(dtype), self._both, self._how))
        self._gate_up.times(self._norm(x, self._mlp_norm), None, self._gated)
        return self._down.added(x, F.silu(self._gate).mul_(self._up)).to(dtype)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As nodewire.llm.layers.norm."""
        scale = (float(torch.dot(x, x)) / len(x) + self._eps) ** -0.5
        return torch.addcmul(self._zero, x, weight, value=scale, out=self._normed)


class _Narrow:
    """Products of a matrix of another dtype, or in blocks, whose inputs and outputs are narrower."""

    def __init__(self, matrix: Matrix) -> None:
        self.of = matrix if isinstance(matrix, BlockMatrix) else Row(matrix)

    def times(self, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        out.copy_(self._of(x))
        if bias is not None:
            out.add_(bias)

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return self._of(to).add(x)

    def _of(self, x: Tensor) -> Tensor:
        if isinstance(self.of, BlockMatrix):
            return self.of.product(x[None])[0]
        return self.of.times(x.to(self.of.matrix.dtype)[None])[0]


def _product(matrix: Matrix) -> Exact | _Narrow:
    if isinstance(matrix, Tensor) and matrix.dtype == torch.float32:
        return Exact(matrix)
    return _Narrow(matrix)


def step_of(layer: LayerParts) -> Step | None:
    """None where a layer has what only `Layer.forward` knows: experts, latents, further norms, another device."""
    attention, mlp, before, between = layer.attention, layer.mlp, layer.attention_norm, layer.mlp_norm
    if not isinstance(attention, Attention) or attention.clip is not None or attention.how.alibi is not None:
        return None
    if not isinstance(mlp, Mlp) or mlp.gate is not silu or layer.parallel or before is None or between is None:
        return None
    further = (
        *(layer.attention_out_norm, layer.mlp_out_norm, attention.q_norm, attention.k_norm, attention.o_bias),
        *(mlp.gate_up_bias, mlp.down_bias, layer.multiplier, layer.embedding_norm, layer.positions),
    )
    if any(one is not None for one in further) or attention.how.softcap or attention.how.sinks is not None:
        return None
    if not (_is_plain(before) and _is_plain(between)) or before.weight.device.type != "cpu":
        return None
    return Step(attention, before, between, attention.qkv, attention.o, mlp.gate_up, mlp.down)


def _is_plain(norm: Norm) -> bool:
    return not norm.centred and norm.eps > 0
