"""Whether a doubted result would harm the weights that are to be made of it: then they wait for its audit.

An update alone may raise the held-out loss and the round's mean lower it none the less: what shards drift apart in, the
mean cancels. So it is the next weights that are looked at, with all results and without this one. What chance does on
samples of this number is no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from nodewire.training.engine.validation import SURE

Without = Callable[[Collection[int]], Tensor]
"""The loss on each held-out sample, float64 [n], of the next weights without these shards' results."""


class Harm:
    """Of one round."""

    def __init__(self, before: Callable[[], Tensor], without: Without) -> None:
        """`before`: the loss on each held-out sample of the weights that the round began with."""
        self._measure, self._without = before, without
        self._all: tuple[Tensor, Tensor] | None = None

    def is_worse(self, index: int, others: bool) -> bool:
        """Whether the next weights are worse than the present ones, or better without this shard's result.

        Args:
            index: of the shard.
            others: whether there are other results.

        """
        before, after = self._all = self._all or (self._measure(), self._without(()))
        return _is_worse(after, before) or (others and _is_worse(after, self._without([index])))


def _is_worse(loss: Tensor, other: Tensor) -> bool:
    """Whether the loss is higher, and by more than chance."""
    more = loss - other
    return not float(more.mean()) <= SURE * float(more.std()) / more.numel() ** 0.5
