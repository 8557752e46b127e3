"""The garbage collector, kept from holding an oracle's loop: what has survived a full collection has tenure.

A market of 4,096 nodes is a million objects, and to look at them all takes half a second. They are documents, which
hold no cycles and go by their reference counts. So after each full collection all that is left is frozen, and the next
one looks only at what has come since. It comes early, so that this is little.

Cycles that die after they were frozen stay. When the process holds twice the blocks of memory that it held before, and
4 million more, everything is looked at once.
"""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("nodewire.oracle.tenure")

SPARE_BLOCKS = 4_194_304
"""Some 400 MB, more than a full market takes."""
_OLDEST = 2
_EARLY = (700, 5, 5)
"""Thresholds (`gc.set_threshold`): a full collection for some 25,000 objects more than before."""
_USUAL = gc.get_threshold()


class Tenure:
    """A callback of `gc.callbacks`."""

    def __init__(self, spare_blocks: int = SPARE_BLOCKS) -> None:
        self._spare_blocks = spare_blocks
        self._most_blocks = 2 * sys.getallocatedblocks() + spare_blocks
        self._is_sweep = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != _OLDEST:
            return
        blocks = sys.getallocatedblocks()
        if self._is_sweep:
            self._is_sweep, self._most_blocks = False, 2 * blocks + self._spare_blocks
            _log.info("the whole heap was collected: %d objects were garbage", info["collected"])
        elif blocks > self._most_blocks:
            self._is_sweep = True
            gc.unfreeze()  # for the next full collection
            return
        gc.freeze()


@contextmanager
def tenured() -> Iterator[None]:
    """Give tenure to what survives, until the end.

    The collector counts objects made, less those that are gone. Where each takes the place of an old one, call
    `gc.collect` now and then.
    """
    tenure = Tenure()
    gc.callbacks.append(tenure)
    gc.set_threshold(*_EARLY)
    gc.collect()
    gc.collect()  # the collector waits for a quarter of what it found last, which is next to nothing now
    try:
        yield
    finally:
        gc.callbacks.remove(tenure)
        if not any(isinstance(other, Tenure) for other in gc.callbacks):
            gc.set_threshold(*_USUAL)
            gc.unfreeze()
