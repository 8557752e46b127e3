"""The Trainer of a trainer's worker.

A model and its optimizer are built once for a training, and lent to session after session. Nothing of one round is in
it for the next: a round begins by loading weights, and moments of zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.training.engine.inner_loop import Trainer

if TYPE_CHECKING:
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe


class LentTrainer:
    """At most one that nobody has; further ones are made and let go of."""

    def __init__(self) -> None:
        self._free: tuple[Recipe, State | None, Trainer] | None = None

    def lend(self, recipe: Recipe, beside: State | None) -> Trainer:
        """One for this recipe, beside these very frozen tensors; it is the borrower's until it comes `back`."""
        free, self._free = self._free, None
        if free is not None and free[0] is recipe and free[1] is beside:
            return free[2]
        del free  # before another takes its room
        return Trainer(recipe, beside)

    def back(self, trainer: Trainer, recipe: Recipe, beside: State | None) -> None:
        """Take one again that holds nothing which anybody wants."""
        self._free = recipe, beside, trainer

    def forget(self) -> None:
        """Make room: the next session is of another recipe."""
        self._free = None
