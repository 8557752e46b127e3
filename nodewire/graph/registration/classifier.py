"""Registers a trained classifier or regressor: its recipe and weights become graph tasks that take rows of numbers.

    x -> graph.0 -> .. -> graph.n -> scores

There is nothing to trace: a family's layers are written down as the whitelist's operators. It has no convolutions and
no pooling, so a convolution is the sum of products that it is, over the shifted images stacked up, and a maximum of
2 x 2 is one over the axes that a reshape makes. A CNN's scores are near those of training, the others' are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from nodewire.errors import BadInput, BadTask, NotFound, OverMemory, Unsupported
from nodewire.graph.cut.analysis import FREE_WEIGHT_BYTES
from nodewire.graph.cut.carve import edge_name
from nodewire.graph.cut.decomposition import DRIVER, Decomposition, decompose, memory_bytes
from nodewire.graph.cut.writer import write_run
from nodewire.graph.program.format import Input, Node, Output, Program, Shape, Weight
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import Ref
from nodewire.protocol.encoding.byte_sizes import at_least, in_units
from nodewire.protocol.model.families import Cnn, Family, Linear, Mlp
from nodewire.training.protocol.recipe import Recipe
from nodewire.weights.directory import SINGLE, stored_if_any, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.kind import Registration
    from nodewire.weights.tensorfile import StoredTensor

WEIGHTS, RECIPE = SINGLE, "recipe.json"
ROWS, X, SCORES = "rows", "x", "scores"
MAX_BATCH = 1_024
_USEFUL_ROWS = 32
_UNBOUNDED = 2**62
_ACTIVATIONS = {"relu": "aten.relu.default", "gelu": "aten.gelu.default", "tanh": "aten.tanh.default"}


def split_classifier(
    directory: Path,
    target_bytes: int,
    out: Path | None,
    *,
    max_batch: int = MAX_BATCH,
    slots: int = 16,
    name: str | None = None,
) -> Registration:
    """Split the classifier in `directory` (recipe.json, model.safetensors) into tasks of at most `target_bytes` each.

    Without `out` it is a dry run, which needs of the directory no more than recipe.json.

    Raises:
        NotFound, BadInput, BadRecipe: the directory does not hold one.
        Unsupported: its family is another.
        OverMemory: a layer alone needs more than the target; names it and the target that would do.

    """
    recipe = _recipe(directory)
    stored = stored_if_any(directory) if out is None else _stored(directory)
    if stored is not None:
        _check(recipe, stored)
    program, shapes = program_of(recipe.family, max_batch, slots)
    done = _whole(program, target_bytes) or decompose(program, shapes, target_bytes, least_volume=1)
    parts = None if stored is None else (lambda weight: (stored[weight],))
    made = write_run(done, parts, target_bytes, out, name=name or recipe.name)
    return replace(made, lacks=(WEIGHTS,) if stored is None else ())


def program_of(family: Family, max_batch: int, slots: int) -> tuple[Program, dict[str, Shape]]:
    """A family's forward pass as one program, and the shape of each of its values.

    Raises:
        Unsupported: a family that is no classifier.

    """
    made = _Layers()
    match family:
        case Linear():
            scores = made.linear(X, "", family.classes)
        case Mlp():
            x = X
            for i, width in enumerate(family.hidden):
                x = made.linear(x, f"layers.{i}.", width)
                x = made.node(_ACTIVATIONS[family.activation], (Ref(x),), (ROWS, width))
            scores = made.linear(x, f"layers.{len(family.hidden)}.", family.classes)
        case Cnn():
            scores = made.cnn(family)
        case _:
            raise Unsupported("family", f"{family.name} is no classifier; its folder has a config.json")
    weights = tuple(Weight(name, torch.float32, shape) for name, shape in family.shapes().items())
    program = Program(
        dims={ROWS: max_batch},
        volume=max_batch,
        inputs=(Input(X, torch.float32, (ROWS, family.inputs)),),
        weights=weights,
        nodes=tuple(made.nodes),
        outputs=(Output(SCORES, scores, torch.float32, (ROWS, family.classes)),),
        slots=slots,
    )
    return program, made.shapes


def _whole(program: Program, target_bytes: int) -> Decomposition | None:
    """All of it as one task, if that fits with a useful number of rows; with any number if there is nothing to cut."""
    is_free = sum(weight.nbytes for weight in program.weights) <= FREE_WEIGHT_BYTES
    inputs = tuple(replace(one, edge=edge_name(DRIVER, "graph.0")) for one in program.inputs)
    rows = program.volume
    while rows >= (1 if is_free else min(_USEFUL_ROWS, program.volume)):
        made = verify(replace(program, inputs=inputs, dims={ROWS: rows}, volume=rows), _UNBOUNDED)
        needed = memory_bytes(made, target_bytes)
        if needed <= target_bytes:
            return Decomposition({"graph.0": made}, {}, rows)
        rows //= 2
    if is_free:
        raise OverMemory("graph.0", f"needs a target of {at_least(needed * 10 // 9)}, {in_units(target_bytes)} given")
    return None


@dataclass(slots=True)
class _Layers:
    """Nodes as they are added, and the shapes of their values."""

    nodes: list[Node] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def node(self, op: str, args: tuple[Any, ...], shape: Shape) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(Node(name, op, args))
        self.shapes[name] = shape
        return name

    def linear(self, x: str, module: str, out: int) -> str:
        return self.node("aten.linear.default", (Ref(x), Ref(f"{module}weight"), Ref(f"{module}bias")), (ROWS, out))

    def cnn(self, family: Cnn) -> str:
        channels, height, width = family.channels, family.height, family.width
        x = self._reshaped(X, channels, height, width)
        for i, filters in enumerate(family.filters):
            x = self._convolution(x, f"convolutions.{i}.", (channels, height, width), filters, family.kernel)
            channels = filters
            if family.pool:
                x, height, width = self._pooled(x, channels, height, width), height // 2, width // 2
        return self.linear(self._reshaped(x, channels * height * width), "head.", family.classes)

    def _reshaped(self, x: str, *sizes: int) -> str:
        return self.node("aten.reshape.default", (Ref(x), [Ref(ROWS), *sizes]), (ROWS, *sizes))

    def _sliced(self, x: str, dim: int, first: int, last: int) -> str:
        shape = self.shapes[x]
        return self.node(
            "aten.slice.Tensor", (Ref(x), dim, first, last), (*shape[:dim], last - first, *shape[dim + 1 :])
        )

    def _convolution(self, x: str, module: str, image: tuple[int, int, int], filters: int, kernel: int) -> str:
        """Same-padded, with its ReLU: W [filters, channels kernel kernel] times the image's neighbourhoods."""
        channels, height, width = image
        edge = kernel // 2
        padded = self.node(
            "aten.constant_pad_nd.default",
            (Ref(x), [edge] * 4),
            (ROWS, channels, height + 2 * edge, width + 2 * edge),
        )
        shifted = [
            Ref(self._sliced(self._sliced(padded, 2, down, down + height), 3, right, right + width))
            for down in range(kernel)
            for right in range(kernel)
        ]
        taps, pixels = kernel * kernel, height * width
        stacked = self.node("aten.stack.default", (shifted, 2), (ROWS, channels, taps, height, width))
        columns = self._reshaped(stacked, channels * taps, pixels)
        matrix = self.node(
            "aten.reshape.default", (Ref(f"{module}weight"), [filters, channels * taps]), (filters, channels * taps)
        )
        bias = self.node("aten.reshape.default", (Ref(f"{module}bias"), [filters, 1]), (filters, 1))
        product = self.node("aten.matmul.default", (Ref(matrix), Ref(columns)), (ROWS, filters, pixels))
        added = self.node("aten.add.Tensor", (Ref(product), Ref(bias)), (ROWS, filters, pixels))
        positive = self.node("aten.relu.default", (Ref(added),), (ROWS, filters, pixels))
        return self._reshaped(positive, filters, height, width)

    def _pooled(self, x: str, channels: int, height: int, width: int) -> str:
        """The maximum of every 2 x 2; an odd last row or column is left out."""
        if height % 2:
            x = self._sliced(x, 2, 0, height - 1)
        if width % 2:
            x = self._sliced(x, 3, 0, width - 1)
        high, wide = height // 2, width // 2
        fours = self._reshaped(x, channels, high, 2, wide, 2)
        return self.node("aten.amax.default", (Ref(fours), [3, 5]), (ROWS, channels, high, wide))


def _recipe(directory: Path) -> Recipe:
    try:
        return Recipe.parse((directory / RECIPE).read_text())
    except OSError as error:
        raise NotFound(str(directory), f"holds no {RECIPE} of a trained classifier") from error
    except UnicodeDecodeError as error:
        raise BadInput(RECIPE, "no text") from error


def _stored(directory: Path) -> Mapping[str, StoredTensor]:
    try:
        return stored_tensors(directory)
    except BadTask as error:
        raise BadInput(WEIGHTS, f"not a safetensors file beside its recipe: {error.reason}") from error


def _check(recipe: Recipe, stored: Mapping[str, StoredTensor]) -> None:
    for name, shape in recipe.family.shapes().items():
        if name not in stored or stored[name].shape != shape:
            found = list(stored[name].shape) if name in stored else "missing"
            raise BadInput(name, f"{found}, the recipe makes it {list(shape)}")
