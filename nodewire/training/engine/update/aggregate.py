"""One step out of many: the weighted mean, and means that survive a few liars.

Results come as (weight, delta) in the order of their shards, which is the order of every sum; the answer is float64.
A product of a weight and a float32 is exact, so only the additions round, and they round alike everywhere.

    mean       sum w_i d_i / sum w_i                                   McMahan et al. 2017, arXiv 1602.05629
    trimmed    the weighted mean without the f lowest and the f highest, per number      Yin et al. 2018, 1803.01498
    median     the middle per number, of an even count the mean of both; weights do not count           (the same)
    clip       the mean of d_i min(1, c median|d| / |d_i|)                            Sun et al. 2019, 1911.07963
    krum       the d_i that is nearest to its n - f - 2 nearest                  Blanchard et al. 2017, 1703.02757
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median as middle

import torch
from torch import Tensor

from nodewire.errors import BadInput
from nodewire.training.engine.state import State
from nodewire.training.engine.sums import distance, norm

Results = Sequence[tuple[int, State]]

AT_ONCE = 1 << 16
"""Numbers of every result that are brought to float64 at a time."""


def mean(results: Results) -> dict[str, Tensor]:
    """The weighted mean of deltas."""
    return _each(results, lambda rows, weights: _weighted(zip(rows, weights, strict=True), sum(weights)))


def trimmed(results: Results, cut: int) -> dict[str, Tensor]:
    """The weighted mean of what is left of every number without the `cut` lowest and highest.

    Of equal numbers the first result's counts as the lower.

    Raises:
        BadInput: nothing is left.

    """
    if not 0 <= 2 * cut < len(results):
        raise BadInput("aggregate", f"{len(results)} results, without the {cut} lowest and highest none is left")

    def kept(rows: list[Tensor], weights: list[int]) -> Tensor:
        ordered, order = torch.stack(rows).sort(dim=0, stable=True)
        left = range(cut, len(rows) - cut)
        heavy = torch.tensor(weights, dtype=torch.float64)[order]
        share = sum((heavy[i] for i in left), torch.zeros_like(rows[0]))
        return _weighted(((ordered[i], heavy[i]) for i in left), share)

    return _each(results, kept)


def median(results: Results) -> dict[str, Tensor]:
    """The middle of every number."""

    def halfway(rows: list[Tensor], _: list[int]) -> Tensor:
        ordered, n = torch.stack(rows).sort(dim=0).values, len(rows)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2

    return _each(results, halfway)


def clip(results: Results, multiple: float, whole: Results | None = None) -> dict[str, Tensor]:
    """The weighted mean of deltas that are cut down to `multiple` times the median of their norms.

    `whole`: the deltas that `results` are pieces of; their norms count.
    """
    norms = [norm(delta) for _, delta in whole or results]
    most = multiple * middle(norms)
    shrunk = [min(1.0, most / length) if length else 1.0 for length in norms]

    def clipped(rows: list[Tensor], weights: list[int]) -> Tensor:
        cut = ((row * factor, weight) for row, factor, weight in zip(rows, shrunk, weights, strict=True))
        return _weighted(cut, sum(weights))

    return _each(results, clipped)


def krum(results: Results, liars: int, whole: Results | None = None) -> dict[str, Tensor]:
    """The one delta whose squared distances to its n - liars - 2 nearest add up to the least; the first of equals.

    `whole`: the deltas that `results` are pieces of; their distances count.

    Raises:
        BadInput: fewer results than 2 liars + 3, for which Krum promises nothing.

    """
    if len(results) < 2 * liars + 3:
        raise BadInput("aggregate", f"{len(results)} results, Krum needs {2 * liars + 3} against {liars}")
    deltas = [delta for _, delta in whole or results]
    apart = [[0.0] * len(deltas) for _ in deltas]
    for i, one in enumerate(deltas):
        for j in range(i):
            apart[i][j] = apart[j][i] = distance(one, deltas[j]) ** 2
    scores = [sum(sorted(row[:i] + row[i + 1 :])[: len(deltas) - liars - 2]) for i, row in enumerate(apart)]
    return {name: tensor.double() for name, tensor in results[scores.index(min(scores))][1].items()}


def _weighted(rows: Iterable[tuple[Tensor, int | Tensor]], share: int | Tensor) -> Tensor:
    total: Tensor | None = None
    for row, weight in rows:
        total = row * weight if total is None else total + row * weight
    assert total is not None
    return total / share


def _each(results: Results, reduce: Callable[[list[Tensor], list[int]], Tensor]) -> dict[str, Tensor]:
    """`reduce` on all results' numbers, a piece at a time: rows float64 [n], one per result."""
    weights = [weight for weight, _ in results]
    found = {}
    for name, first in results[0][1].items():
        pieces = zip(*(torch.split(delta[name].reshape(-1), AT_ONCE) for _, delta in results), strict=True)
        reduced = [reduce([row.double() for row in rows], weights) for rows in pieces]
        found[name] = torch.cat(reduced).view(first.shape)
    return found
