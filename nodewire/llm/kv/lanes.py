"""The lanes of a stage: cells of one pool, taken page by page, all of its memory when the task is loaded.

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

    `keys` and `values`: per layer [kv_heads, cells, head_dim].
    """

    def __init__(
        self, config: DecoderConfig, layers: int, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        count = slots * pages_of(positions)
        shape = (config.num_key_value_heads, PAGE * count, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.numbers = torch.arange(positions, device=device)
        self.device, self.positions = device, positions
        self._pages = Pages(count)

    def open(self, positions: int | None = None) -> Lane:
        """A lane of at most so many positions, or as many as one may have. Raises Busy: no pages are left for it."""
        most = self.positions if positions is None else positions
        return Lane(self, self._pages.take(pages_of(most)), most)

    def close(self, lane: Lane) -> None:
        self._pages.give_back(lane.runs)


class Lane:
    """At most `positions` cells in pages `runs` of `lanes`: `length` committed ones, then those of `tree`."""

    def __init__(self, lanes: Lanes, runs: Sequence[range], positions: int) -> None:
        self.lanes, self.runs, self.positions = lanes, runs, positions
        self.length = 0
        self.tree = Tree()

    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Put rows [n, kv_heads, head_dim] into the cells from `first` on."""
        done = 0
        for place in self._places(first, first + len(keys)):
            rows = slice(done, done + place.stop - place.start)
            self.lanes.keys[layer][:, place] = keys[rows].transpose(0, 1)
            self.lanes.values[layer][:, place] = values[rows].transpose(0, 1)
            done = rows.stop

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, end - first, head_dim]: views of the pool where one run of pages has them all."""
        places = self._places(first, end)
        keys, values = self.lanes.keys[layer], self.lanes.values[layer]
        if len(places) == 1:
            return keys[:, places[0]], values[:, places[0]]
        return torch.cat([keys[:, one] for one in places], 1), torch.cat([values[:, one] for one in places], 1)

    def keep(self, path: Sequence[int]) -> None:
        """Have live cells join the committed run; those that do not descend from the last of them are gone.

        Raises BadFrame: they are no path from the run's end.
        """
        tree, order = self.tree.kept(path)
        stays = next((new for new, old in enumerate(order) if new != old), len(order))
        if stays < len(order):
            numbers = self._numbers(self.length, self.length + len(self.tree))
            source = numbers[torch.tensor(order[stays:], device=self.lanes.device)]
            for kept in (*self.lanes.keys, *self.lanes.values):
                kept[:, numbers[stays : len(order)]] = kept[:, source]
        self.length += len(path)
        self.tree = tree

    def _places(self, first: int, end: int) -> list[slice]:
        """Where in the pool the cells [first, end) lie, in order."""
        found, before = [], 0
        for run in self.runs:
            cells = PAGE * len(run)
            if first < before + cells and end > before:
                shift = PAGE * run.start - before
                found.append(slice(shift + max(first, before), shift + min(end, before + cells)))
            before += cells
        return found

    def _numbers(self, first: int, end: int) -> Tensor:
        """Where in the pool they lie, int64 [end - first]."""
        places = self._places(first, end)
        return torch.cat([torch.arange(one.start, one.stop, device=self.lanes.device) for one in places])
