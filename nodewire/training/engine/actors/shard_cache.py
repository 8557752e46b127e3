"""The shard that a trainer's worker had last: a training's next round is mostly of the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.training.engine.data import Shard
    from nodewire.training.protocol.recipe import Recipe


class HeldShard:
    """One at a time. A name is its training's and its hash: who only knows the hash of another's data gets none."""

    def __init__(self) -> None:
        self._of: tuple[str, object] | None = None
        self._shard: Shard | None = None

    def find(self, name: str, recipe: Recipe) -> Shard | None:
        """What was kept under this name for the same model; anything else is let go of, to make room."""
        if not name or self._of != (name, (recipe.family, recipe.data)):
            self._of = self._shard = None
        return self._shard

    def keep(self, name: str, recipe: Recipe, shard: Shard) -> None:
        self._of, self._shard = (name, (recipe.family, recipe.data)), shard
