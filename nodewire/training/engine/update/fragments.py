"""Which part of a model a round sends and steps. nips/31-training-updates.md.

Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512) synchronises a model's blocks in turn, so that a round takes
a fraction of the bytes. Here all trained numbers, in the family's order, are one row of n. It is cut into S stretches,
stretch j being the numbers from j n // S up to (j + 1) n // S, with S = F x max(1, layers // F) for F fragments: as
long as some layers each. Fragment f has the stretches f, f + F, f + 2 F ...: interleaved, and alike in size to S
numbers. Round r sends fragment r mod F; the recipe's last round sends all. A fragment's tensors are flat, what of each
tensor is in it joined, and tensors of which nothing is are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.training.engine.update import outer_step

if TYPE_CHECKING:
    from nodewire.protocol.model.families import Shapes
    from nodewire.training.engine.state import State
    from nodewire.training.engine.update.aggregate import Results
    from nodewire.training.protocol.recipe import Recipe

Spans = Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """`spans`: of each tensor that has any, the stretches of its numbers; None: all of everything, as it is."""

    spans: Spans | None

    def shapes(self, whole: Shapes) -> Shapes:
        """The shapes of `select`."""
        if self.spans is None:
            return whole
        return {name: (sum(stop - start for start, stop in spans),) for name, spans in self.spans.items()}

    def select(self, tensors: State) -> State:
        """The fragment's part of tensors; a name may stand behind a prefix and a slash, as of momenta."""
        if self.spans is None:
            return tensors
        found = {}
        for name, tensor in tensors.items():
            spans = self.spans.get(_plain(name))
            if spans is not None:
                row = tensor.reshape(-1)
                found[name] = torch.cat([row[start:stop] for start, stop in spans])
        return found

    def into(self, part: State, whole: State) -> State:
        """`whole` with the numbers of `part` (made by `select`) in their places; neither is changed."""
        if self.spans is None:
            return part
        made = dict(whole)
        for name, tensor in part.items():
            spans = self.spans[_plain(name)]
            filled = whole[name].clone()
            row, pieces = filled.view(-1), torch.split(tensor, [stop - start for start, stop in spans])
            for (start, stop), piece in zip(spans, pieces, strict=True):
                row[start:stop] = piece
            made[name] = filled
        return made


def of_round(recipe: Recipe, round: int) -> Fragment:
    """What a round sends."""
    fragments = recipe.compression.fragments
    if fragments == 1 or round >= recipe.rounds - 1:
        return Fragment(None)
    numbers, stretches = recipe.trained(), recipe.stretches()
    cuts = [(j * numbers // stretches, (j + 1) * numbers // stretches) for j in range(stretches)]
    mine = cuts[round % fragments :: fragments]
    spans, begin = {}, 0
    for name, shape in recipe.shapes().items():
        end = begin + prod(shape)
        inside = tuple(
            (max(start, begin) - begin, min(stop, end) - begin) for start, stop in mine if start < end and stop > begin
        )
        if inside:
            spans[name] = inside
        begin = end
    return Fragment(spans)


def zeros(shapes: Shapes) -> dict[str, Tensor]:
    """A state of nothing."""
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def step(recipe: Recipe, round: int, theta: State, momenta: State, results: Results) -> tuple[State, State]:
    """The outer step of a round's fragment, from updates of the whole model's shapes; all else stays as it is.

    Momenta are a fragment's own: they wait while others are stepped. Raises as `outer_step.step`.
    """
    fragment = of_round(recipe, round)
    return step_parts(recipe, round, theta, momenta, [(weight, fragment.select(delta)) for weight, delta in results])


def step_parts(recipe: Recipe, round: int, theta: State, momenta: State, parts: Results) -> tuple[State, State]:
    """`step`, from updates of what the round sends (`Fragment.select`)."""
    fragment = of_round(recipe, round)
    after, kept = outer_step.step(recipe.outer_of(round), fragment.select(theta), fragment.select(momenta), parts)
    return fragment.into(after, theta), fragment.into(kept, momenta)


def _plain(name: str) -> str:
    return name.rpartition("/")[2]
