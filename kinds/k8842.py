"""Kind 8842: a round's outer step as a job of its own, for a customer that would rather buy it than make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadRecipe
from nodewire.protocol import kinds

if TYPE_CHECKING:
    from nodewire.training.protocol.recipe import Recipe


class OuterStep:
    request = kinds.OUTER
    worker_entry = "kinds.training_worker"

    def check(self, recipe: Recipe) -> None:
        """Raises BadRecipe, whatever the recipe: rounds are of the other two kinds, and steps of both are served."""
        raise BadRecipe("kind", f"{self.request} is an outer step, no round")


KIND = OuterStep()
