"""The lanes of a stage: cells of one pool, taken in runs of pages, all of its memory when the task is loaded.

A lane is one session's: its committed run comes first, position by position, live cells (`tree`) follow. It has its
pages from the beginning, so nobody runs out in mid-session. What lies beyond its cells is never read, so a rewind is a
smaller length, and a lane that is given back needs no clearing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nodewire.llm.config import DecoderConfig
from nodewire.llm.kv.pages import PAGE, Pages, pages_of
from nodewire.llm.kv.tree import Tree


class Lanes:
    """Cells for `slots` lanes of `positions`, or for more of fewer.

    `cells`: per layer [2, kv_heads, cells, head_dim], of which `keys` are the first and `values` the second.
    """

    def __init__(
        self, config: DecoderConfig, layers: int, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = pages_of(positions)
        shape = (2, config.num_key_value_heads, PAGE * slots * size, config.head_dim)
        self.cells = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.keys, self.values = ([both[which] for both in self.cells] for which in (0, 1))
        self.numbers = torch.arange(positions, device=device)
        self.positions = positions
        self._pages = Pages(slots, size)

    def open(self, positions: int | None = None) -> Lane:
        """A lane of at most so many positions, or as many as one may have. Raises Busy: no pages are left for it."""
        most = self.positions if positions is None else positions
        return Lane(self, self._pages.take(pages_of(most)), most)

    def close(self, lane: Lane) -> None:
        self._pages.give_back(lane.pages)


class Lane:
    """At most `positions` cells in `pages` of `lanes`: `length` committed ones, then those of `tree`."""

    def __init__(self, lanes: Lanes, pages: range, positions: int) -> None:
        self.lanes, self.pages, self.positions = lanes, pages, positions
        self.length = 0
        self.tree = Tree()
        self._start = PAGE * pages.start

    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Put rows [n, kv_heads, head_dim] into the cells from `first` on."""
        place = slice(self._start + first, self._start + first + len(keys))
        self.lanes.keys[layer][:, place] = keys.transpose(0, 1)
        self.lanes.values[layer][:, place] = values.transpose(0, 1)

    def write_row(self, layer: int, cell: int, both: Tensor) -> None:
        """Put one row's keys and values [2, kv_heads, head_dim] into a cell."""
        self.lanes.cells[layer].select(2, self._start + cell).copy_(both)

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, end - first, head_dim], not copied."""
        keys, values = self.lanes.cells[layer].narrow(2, self._start + first, end - first).unbind()
        return keys, values

    def keep(self, path: Sequence[int]) -> None:
        """Have live cells join the committed run; those that do not descend from the last of them are gone.

        Raises BadFrame: they are no path from the run's end.
        """
        tree, order = self.tree.kept(path)
        stays = next((new for new, old in enumerate(order) if new != old), len(order))
        if stays < len(order):
            source = torch.tensor(order[stays:], device=self.lanes.numbers.device)
            live = slice(self._start + self.length, self._start + self.length + len(self.tree))
            for kept in (*self.lanes.keys, *self.lanes.values):
                cells = kept[:, live]
                cells[:, stays : len(order)] = cells[:, source]
        self.length += len(path)
        self.tree = tree
