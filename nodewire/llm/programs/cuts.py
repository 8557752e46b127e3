"""Where a decoder's layers are cut into stages: at given borders, evenly, or by what each stage needs.

Fewest stages first, then even ones: where a model's layers are alike, stages differ by one layer at most; where they
are not (experts in some only), the largest stage is as small as it can be.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from nodewire.errors import OverMemory
from nodewire.protocol.encoding.byte_sizes import at_least, in_units
from nodewire.protocol.model import layer_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodewire.llm.programs.memory_estimate import Footprint
    from nodewire.protocol.model.layer_ranges import Border


def cuts_at(split: Sequence[Border], layers: int) -> list[tuple[int, int]]:
    """The layer ranges of stages that are given by their first and last layer.

    Raises BadInput as `layer_ranges.check`.
    """
    layer_ranges.check(split, layers)
    return [(first, last + 1) for first, last in split]


def even_cuts(layers: int, count: int) -> list[tuple[int, int]]:
    """So many stages, as even as can be, the shorter ones first."""
    return list(pairwise(layers * index // count for index in range(count + 1)))


def plan_cuts(
    layers: int, target_bytes: int, driver: Footprint, stage: Callable[[int, int], Footprint]
) -> list[tuple[int, int]]:
    """The stages' layer ranges: the fewest that all fit the target, as even as can be.

    Raises:
        OverMemory: the driver or one layer alone does not fit.

    """
    single = max((stage(layer, layer + 1).total, -layer) for layer in range(layers))
    would_do = f"`--target-vram {at_least(max(driver.total, single[0]))}` would do"
    if driver.total > target_bytes:
        raise OverMemory("driver", f"needs {in_units(driver.total)} ({driver.words}); {would_do}")
    if single[0] > target_bytes:
        worst = -single[1]
        parts = stage(worst, worst + 1).words
        raise OverMemory(f"layer {worst}", f"needs {in_units(single[0])} alone ({parts}); {would_do}")
    count = len(filled(layers, target_bytes, stage))
    cuts = even_cuts(layers, count)
    if all(stage(first, last).total <= target_bytes for first, last in cuts):
        return cuts
    # Layers are unlike each other: the smallest target that needs no more stages makes their sizes even.
    low, high = single[0], target_bytes
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(filled(layers, middle, stage)) <= count else (middle + 1, high)
    return filled(layers, high, stage)


def filled(layers: int, target_bytes: int, stage: Callable[[int, int], Footprint]) -> list[tuple[int, int]]:
    """Each stage as many layers as fit, which makes the fewest; single layers fit."""
    cuts, first = [], 0
    for last in range(1, layers + 1):
        if last == layers or stage(first, last + 1).total > target_bytes:
            cuts.append((first, last))
            first = last
    return cuts
