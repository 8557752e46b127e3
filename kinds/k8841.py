"""Kind 8841: a DiLoCo round. The mean of the providers' pseudo-gradients is a step of an outer optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadRecipe
from nodewire.protocol import kinds

if TYPE_CHECKING:
    from nodewire.training.protocol.recipe import Recipe


class DiLoCo:
    request = kinds.DILOCO
    worker_entry = "kinds.training_worker"

    def check(self, recipe: Recipe) -> None:
        """Raises BadRecipe: its outer step is only an average."""
        if recipe.outer.method == "average":
            raise BadRecipe("outer.method", f"average is not kind {self.request}'s")


KIND = DiLoCo()
