"""Classifiers and regressors of rows: linear, MLP, CNN. A batch is x float32 [n, inputs] and y."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.protocol.model.families import Cnn, Linear, Mlp

if TYPE_CHECKING:
    from nodewire.training.engine.families.weights import Apply, Batch, Weights

_ACTIVATIONS: dict[str, Apply] = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}


class Classifier:
    """Scores of rows; y is int64 [n], or float32 [n, classes] where the loss is the squared error."""

    def __init__(self, scores: Apply, squared: bool) -> None:
        self._scores = scores
        self._loss = F.mse_loss if squared else F.cross_entropy

    def outputs(self, batch: Batch) -> Tensor:
        return self._scores(batch[0])

    def loss(self, batch: Batch) -> Tensor:
        return self._loss(self._scores(batch[0]).float(), batch[1])

    def losses(self, batch: Batch) -> Tensor:
        return self._loss(self._scores(batch[0]).float(), batch[1], reduction="none").view(len(batch[0]), -1).mean(1)


def build(family: Linear | Mlp | Cnn, weights: Weights, *, squared: bool) -> Classifier:
    match family:
        case Linear():
            weight, bias = weights["weight"], weights["bias"]
            return Classifier(lambda x: F.linear(x, weight, bias), squared)
        case Mlp():
            return Classifier(_mlp(family, weights), squared)
        case Cnn():
            return Classifier(_cnn(family, weights), squared)


def _mlp(family: Mlp, weights: Weights) -> Apply:
    activation = _ACTIVATIONS[family.activation]
    *layers, last = [weights.matrix(f"layers.{i}") for i in range(len(family.hidden) + 1)]

    def scores(x: Tensor) -> Tensor:
        for layer in layers:
            x = activation(layer(x))
        return last(x)

    return scores


def _cnn(family: Cnn, weights: Weights) -> Apply:
    shape, padding, pool = (-1, family.channels, family.height, family.width), family.kernel // 2, family.pool
    layers = [
        (weights[f"convolutions.{i}.weight"], weights[f"convolutions.{i}.bias"]) for i in range(len(family.filters))
    ]
    head = weights.matrix("head")

    def scores(x: Tensor) -> Tensor:
        x = x.view(shape)
        for weight, bias in layers:
            x = F.relu(F.conv2d(x, weight, bias, padding=padding))
            if pool:
                x = F.max_pool2d(x, 2)
        return head(x.flatten(1))

    return scores
