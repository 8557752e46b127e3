"""A mixture of experts: a router sends each row to a few gated MLPs, whose weighted outputs are added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.layers.mlp import Gate, Mlp
from nodewire.llm.quant.matrix import Matrix, linear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.llm.spec.config import Experts


class Mixture:
    """All of a layer's experts, and the MLP that every row goes through besides, if the model has one."""

    def __init__(self, mixture: Experts, weights: Mapping[str, Any], gate: Gate) -> None:
        self.numbers, self.gate = mixture, gate
        self.scale = float(mixture.routed_scaling_factor)
        self.router, self.router_bias = weights["router"], weights.get("router_bias")
        self.correction = weights.get("router_correction")
        stacked = weights["experts_gate_up"], weights["experts_down"]
        self.stacked = stacked if all(isinstance(one, Tensor) for one in stacked) else None
        self.gate_up, self.gate_up_bias = _each(weights["experts_gate_up"]), weights.get("experts_gate_up_bias")
        self.down, self.down_bias = _each(weights["experts_down"]), weights.get("experts_down_bias")
        self.shared = (
            Mlp(weights["shared_gate_up"], weights["shared_down"], gate) if "shared_gate_up" in weights else None
        )
        self.shared_gate = weights.get("shared_gate")

    @property
    def is_stacked(self) -> bool:
        return self.stacked is not None

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] in and out."""
        chosen, weights = self.route(x)
        out = torch.zeros_like(x)
        if len(x) == 1:
            for place, expert in enumerate(chosen[0].tolist()):
                out.add_(self._expert(expert, x).mul_(weights[:, place, None]))
        else:
            for expert in torch.unique(chosen).tolist():
                rows, places = torch.where(chosen == expert)
                out.index_add_(0, rows, self._expert(expert, x[rows]).mul_(weights[rows, places, None]))
        return self.with_shared(out, x)

    def with_shared(self, out: Tensor, x: Tensor) -> Tensor:
        """`out`, to which is added what the MLP besides makes of `x`."""
        if self.shared is not None:
            beside = self.shared.forward(x)
            if self.shared_gate is not None:
                beside = beside * F.linear(x, self.shared_gate).sigmoid_()
            out += beside
        return out

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, int64 [n, chosen], and their weights in x's dtype."""
        numbers = self.numbers
        logits = F.linear(x.float(), self.router, self.router_bias)
        if self.correction is None:
            scores = self._best(logits.softmax(-1), 1)
            weights, chosen = scores.topk(numbers.num_experts_per_tok, -1)
        else:
            scores = logits.sigmoid()
            chosen = self._best(scores + self.correction, 2).topk(numbers.num_experts_per_tok, -1).indices
            weights = scores.gather(1, chosen)
        if numbers.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, (weights * self.scale).to(x.dtype)

    def _best(self, scores: Tensor, each: int) -> Tensor:
        """Scores [n, experts] of the best groups by the sum of their `each` best; those of the others are below all."""
        numbers = self.numbers
        if numbers.n_group == 1:
            return scores
        groups = scores.view(len(scores), numbers.n_group, -1)
        best = groups.topk(each, -1).values.sum(-1).topk(numbers.topk_group, -1).indices
        left = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, False)
        return groups.masked_fill(left[..., None], -torch.inf).view_as(scores)

    def _expert(self, number: int, x: Tensor) -> Tensor:
        gate_up = linear(x, self.gate_up[number], None if self.gate_up_bias is None else self.gate_up_bias[number])
        return linear(self.gate(gate_up), self.down[number], None if self.down_bias is None else self.down_bias[number])


class AllAtOnce:
    """A mixture whose experts are plain, computed without asking the device which were chosen.

    Of a few rows the chosen experts' matrices are copied side by side, which reads and writes them again. Of more,
    every expert computes every row, and what was not chosen is left out.
    """

    _COPIED = 3
    """Times that a copied matrix is read or written, for once of one that is not."""

    def __init__(self, mixture: Mixture) -> None:
        assert mixture.stacked is not None
        self._of, (self._gate_up, self._down) = mixture, mixture.stacked

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] in and out."""
        chosen, weights = self._of.route(x)
        is_few = self._COPIED * chosen.numel() < len(self._gate_up)
        return self._of.with_shared((self._chosen if is_few else self._every)(x, chosen, weights), x)

    def _chosen(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        n, each = chosen.shape
        experts = chosen.flatten()
        rows = x[:, None].expand(-1, each, -1).reshape(n * each, 1, -1)
        made = self._multiplied(rows, self._gate_up.index_select(0, experts), _of(self._of.gate_up_bias, experts))
        made = self._multiplied(
            self._of.gate(made), self._down.index_select(0, experts), _of(self._of.down_bias, experts)
        )
        return made.view(n, each, -1).mul_(weights[..., None]).sum(1)

    def _every(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        rows = x.expand(len(self._gate_up), -1, -1)
        made = self._multiplied(rows, self._gate_up, self._of.gate_up_bias)
        made = self._multiplied(self._of.gate(made), self._down, self._of.down_bias)
        share = weights.new_zeros(len(x), len(made)).scatter_(1, chosen, weights)
        was_chosen = torch.zeros_like(share, dtype=torch.bool).scatter_(1, chosen, True)
        return torch.where(was_chosen.t()[..., None], made * share.t()[..., None], 0).sum(0)

    @staticmethod
    def _multiplied(x: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
        """[experts, n, in] and [experts, out, in] to [experts, n, out]; `bias` [experts, out]."""
        made = torch.bmm(x, matrices.transpose(1, 2))
        return made if bias is None else made.add_(bias[:, None])


def _of(bias: Tensor | None, experts: Tensor) -> Tensor | None:
    return None if bias is None else bias.index_select(0, experts)


def _each(matrices: Tensor | Sequence[Matrix]) -> Sequence[Matrix]:
    return matrices.unbind() if isinstance(matrices, Tensor) else matrices
