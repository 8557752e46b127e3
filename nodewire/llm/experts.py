"""A mixture of experts: a router sends each row to a few gated MLPs, whose weighted outputs are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.config import Experts
from nodewire.llm.mlp import Gate, Mlp
from nodewire.llm.quant.matrix import Matrix, linear


class Mixture:
    """All of a layer's experts, and the MLP that every row goes through besides, if the model has one."""

    def __init__(self, mixture: Experts, weights: Mapping[str, Any], gate: Gate) -> None:
        self.numbers, self.gate = mixture, gate
        self.scale = float(mixture.routed_scaling_factor)
        self.router, self.router_bias = weights["router"], weights.get("router_bias")
        self.correction = weights.get("router_correction")
        self.gate_up, self.gate_up_bias = _each(weights["experts_gate_up"]), weights.get("experts_gate_up_bias")
        self.down, self.down_bias = _each(weights["experts_down"]), weights.get("experts_down_bias")
        self.shared = (
            Mlp(weights["shared_gate_up"], weights["shared_down"], gate) if "shared_gate_up" in weights else None
        )
        self.shared_gate = weights.get("shared_gate")

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] in and out."""
        chosen, weights = self._route(x)
        out = torch.zeros_like(x)
        if len(x) == 1:
            for place, expert in enumerate(chosen[0].tolist()):
                out.add_(self._expert(expert, x).mul_(weights[:, place, None]))
        else:
            for expert in torch.unique(chosen).tolist():
                rows, places = torch.where(chosen == expert)
                out.index_add_(0, rows, self._expert(expert, x[rows]).mul_(weights[rows, places, None]))
        if self.shared is not None:
            beside = self.shared.forward(x)
            if self.shared_gate is not None:
                beside = beside * F.linear(x, self.shared_gate).sigmoid_()
            out += beside
        return out

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, int64 [n, chosen], and their weights in x's dtype."""
        numbers = self.numbers
        logits = F.linear(x.float(), self.router, self.router_bias)
        if self.correction is None:
            scores = logits.softmax(-1)
            weights, chosen = scores.topk(numbers.num_experts_per_tok, -1)
        else:
            scores = logits.sigmoid()
            chosen = self._best(scores + self.correction).topk(numbers.num_experts_per_tok, -1).indices
            weights = scores.gather(1, chosen)
        if numbers.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, (weights * self.scale).to(x.dtype)

    def _best(self, scores: Tensor) -> Tensor:
        """Scores [n, experts] of the best groups; those of the others are below all."""
        numbers = self.numbers
        if numbers.n_group == 1:
            return scores
        groups = scores.view(len(scores), numbers.n_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(numbers.topk_group, -1).indices
        left = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, False)
        return groups.masked_fill(left[..., None], -torch.inf).view_as(scores)

    def _expert(self, number: int, x: Tensor) -> Tensor:
        gate_up = linear(x, self.gate_up[number], None if self.gate_up_bias is None else self.gate_up_bias[number])
        return linear(self.gate(gate_up), self.down[number], None if self.down_bias is None else self.down_bias[number])


def _each(matrices: Tensor | Sequence[Matrix]) -> Sequence[Matrix]:
    return matrices.unbind() if isinstance(matrices, Tensor) else matrices
