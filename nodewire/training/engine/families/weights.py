"""What a family's file is given and what it returns: named tensors in, a model over them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

Batch = tuple[Tensor, ...]
Apply = Callable[[Tensor], Tensor]


class Model(Protocol):
    """What a family's file builds."""

    def outputs(self, batch: Batch) -> Tensor:
        """What a user of the model sees: scores [n, classes], logits [n, window, vocabulary], embeddings [2n, d]."""

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, float32 []."""

    def losses(self, batch: Batch) -> Tensor:
        """The losses of a batch's samples, float32 [n], of which that is the mean."""


class Weights:
    """A model's tensors by name; `matrix` makes the linear maps, with low-rank adapters where there are any."""

    def __init__(self, tensors: Mapping[str, Tensor], scale: float = 0.0) -> None:
        self.tensors = tensors
        self.scale = scale

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def matrix(self, module: str) -> Apply:
        """The function x -> W x (+ bias) (+ scale B A x) of the module's tensors."""
        weight, bias = self.tensors[f"{module}.weight"], self.tensors.get(f"{module}.bias")
        a, b, scale = self.tensors.get(f"{module}.lora_a"), self.tensors.get(f"{module}.lora_b"), self.scale
        if a is None or b is None:
            return lambda x: F.linear(x, weight, bias)
        return lambda x: F.linear(x, weight, bias) + F.linear(F.linear(x, a), b) * scale
