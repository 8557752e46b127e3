"""Frozen weights at a trainer: come in pieces, straight to where they are used, and kept for the next round."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadData, BadFrame, BadRecipe
from nodewire.protocol.model.families import count
from nodewire.training.engine import state
from nodewire.training.protocol import initial_weights

if TYPE_CHECKING:
    from nodewire.training.engine.actors.pieces import Tensors
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe


class FrozenWeights:
    """The weights that came last, for all sessions that name the same; a training's rounds do, one after the other."""

    def __init__(self) -> None:
        self._of: tuple[str, object] | None = None
        self._tensors: State | None = None

    def find(self, name: str, recipe: Recipe) -> State | None:
        """What was kept under this name for the same model; anything else is let go of, to make room."""
        if self._of != (name, recipe.family):
            self._of = self._tensors = None
        return self._tensors

    def keep(self, name: str, recipe: Recipe, tensors: State) -> None:
        self._of, self._tensors = (name, recipe.family), tensors


class FrozenIn:
    """The file that an adapter's recipe starts from; its header follows from the recipe, and so does its size."""

    def __init__(self, recipe: Recipe) -> None:
        """Takes the tensors' memory (`Recipe.parameters` counts it). Raises BadRecipe: it needs no such file."""
        if initial_weights.frozen(recipe) is None:
            raise BadRecipe("family.start", "nothing is frozen")
        initial_weights.check(recipe)
        shapes = recipe.family.shapes()
        self._shapes = shapes
        self._header = initial_weights.header(shapes)
        self._numbers = torch.empty(count(shapes))
        self._at = 0

    def feed(self, frame: Tensors) -> State | None:
        """The tensors, in the family's order, when the last piece is here.

        Raises:
            BadFrame: no bytes.
            BadData: another header, more or fewer bytes, or a number that is not finite.

        """
        if len(frame.tensors) != 1 or frame.tensors[0].dtype != torch.uint8:
            raise BadFrame(frame.edge, "not one tensor of bytes")
        (piece,) = frame.tensors
        if not frame.seq:  # from the start, whatever was broken off
            self._at = 0
        body = self._numbers.view(torch.uint8)
        if self._at + piece.numel() > len(self._header) + body.numel():
            raise BadData(frame.edge, "more bytes than the model has")
        if self._at < len(self._header):
            head = piece[: len(self._header) - self._at]
            if head.numpy().tobytes() != self._header[self._at : self._at + head.numel()]:
                raise BadData(frame.edge, "not the tensors that the recipe's model has")
            self._at += head.numel()
            piece = piece[head.numel() :]
        at = self._at - len(self._header)
        body[at : at + piece.numel()] = piece
        self._at += piece.numel()
        if not frame.meta.get("end"):
            return None
        if self._at != len(self._header) + body.numel():
            raise BadData(frame.edge, f"{self._at} bytes, the model has more")
        if not state.is_finite(self._numbers):
            raise BadData(frame.edge, "a number is not finite")
        return self._views()

    def _views(self) -> State:
        found, at = {}, 0
        for name in sorted(self._shapes):
            shape = self._shapes[name]
            size = prod(shape)
            found[name] = self._numbers[at : at + size].view(shape)
            at += size
        return {name: found[name] for name in self._shapes}
