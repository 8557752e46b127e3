"""Kind 8840: a FedAvg round. What comes next is the mean of what the providers' weights became."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadRecipe
from nodewire.protocol import kinds

if TYPE_CHECKING:
    from nodewire.training.protocol.recipe import Recipe


class FedAvg:
    request = kinds.FEDAVG
    worker_entry = "kinds.training_worker"

    def check(self, recipe: Recipe) -> None:
        """Raises BadRecipe: its outer step is more than an average."""
        if recipe.outer.method != "average":
            raise BadRecipe("outer.method", f"{recipe.outer.method} is not kind {self.request}'s")


KIND = FedAvg()
