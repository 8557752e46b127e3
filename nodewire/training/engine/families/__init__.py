"""Model families as functions of bound weights: each file builds a model over tensors that somebody else owns.

A model is no torch module: it holds views of one flat buffer, so that an optimizer's step is a few operations on
that buffer whatever the number of tensors. A new family adds its file here and its document to protocol/families.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadRecipe
from nodewire.protocol.model.families import Cnn, Decoder, Encoder, Linear, Mlp, Shapes
from nodewire.training.engine import draw
from nodewire.training.engine.families import classifier, decoder, encoder
from nodewire.training.engine.families.weights import Batch, Model, Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

__all__ = ["Batch", "Model", "build", "hidden_matrices", "initial"]


def build(recipe: Recipe, tensors: Mapping[str, Tensor]) -> Model:
    """The recipe's model over these tensors: what is trained and, under an adapter, the frozen ones too."""
    adapter, family, window = recipe.adapter, recipe.family, recipe.data.window
    weights = Weights(tensors, adapter.alpha / adapter.rank if adapter else 0.0)
    match family:
        case Linear() | Mlp() | Cnn():
            return classifier.build(family, weights, squared=recipe.loss == "squared_error")
        case Decoder():
            return decoder.DecoderModel(family, weights, window)
        case Encoder():
            return encoder.EncoderModel(family, weights)


def initial(recipe: Recipe, start: State | None = None) -> State:
    """Theta before the first round: drawn from the recipe's seed, or the tensors of `start`; bit-identical anywhere.

    Matrices are uniform with the family's standard deviation, norms 1, biases 0; of adapters A is uniform and B is 0.

    Raises:
        BadRecipe: the recipe names a start that was not given.

    """
    family = recipe.family
    if isinstance(family, Decoder | Encoder) and family.start is not None and start is None:
        raise BadRecipe("family.start", "its tensors are not at hand")
    shapes = recipe.shapes()
    if start is not None and recipe.adapter is None:
        return {name: start[name].detach().clone() for name in shapes}
    return {name: _drawn(recipe, name, shape) for name, shape in shapes.items()}


def hidden_matrices(recipe: Recipe) -> Shapes:
    """What Muon orthogonalizes: matrices but for embeddings and whatever makes the last layer's scores."""
    shapes = recipe.shapes()
    if recipe.adapter is not None:
        return {name: shape for name, shape in shapes.items() if len(shape) == 2}
    match recipe.family:
        case Mlp() as mlp:
            last = f"layers.{len(mlp.hidden)}.weight"
            return {name: shape for name, shape in shapes.items() if len(shape) == 2 and name != last}
        case Decoder() | Encoder():
            return {name: shape for name, shape in shapes.items() if len(shape) == 2 and ".layer" in name}
    return {}


def _drawn(recipe: Recipe, name: str, shape: tuple[int, ...]) -> Tensor:
    bound = _bound(recipe, name, shape)
    if bound is None:
        return torch.ones(shape)
    if bound == 0:
        return torch.zeros(shape)
    row = math.prod(shape[1:])
    values = torch.empty(shape[0], row)
    step = max(1, 2**22 // row)
    for first in range(0, shape[0], step):  # in pieces, because the drawn words are as large as the tensor
        piece = values[first : first + step]
        drawn = draw.uniform(piece.numel(), bound, "theta", recipe.seed, name, first)
        piece.copy_(torch.from_numpy(drawn).view_as(piece))
    return values.view(shape)


def _bound(recipe: Recipe, name: str, shape: tuple[int, ...]) -> float | None:
    """The bound of a uniform draw; 0 for zeros, None for ones."""
    family, kind = recipe.family, name.rpartition(".")[2]
    if kind == "lora_b":
        return 0.0
    if isinstance(family, Linear | Mlp | Cnn):
        weight = recipe.shapes()[name.removesuffix("bias") + "weight"] if kind == "bias" else shape
        return 1 / math.sqrt(math.prod(weight[1:]))
    if kind == "lora_a":
        return 1 / math.sqrt(shape[1])
    if len(shape) == 1:
        return 0.0 if kind == "bias" else None
    # A standard deviation of 0.02; what adds to the residual stream shrinks with the number of layers (GPT-2).
    residual = isinstance(family, Decoder) and name.endswith(("o_proj.weight", "down_proj.weight"))
    return 0.02 * math.sqrt(3) / (math.sqrt(2 * family.layers) if residual else 1)
