"""The lanes of a stage: cells of one pool, taken in runs of pages. All of it counts when the task is loaded.

A lane is one session's: its committed run comes first, position by position, live cells (`tree`) follow. It has its
pages from the beginning, so nobody runs out in mid-session. What lies beyond its cells is never read, so a rewind is a
smaller length, and a lane that is given back needs no clearing. Where pages that are free do not lie together, lanes
are moved to the pool's beginning: so a session fits if its pages are free, whatever came and went before it.
"""

from __future__ import annotations

import math
import mmap
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from nodewire.llm.kv.page_allocator import Pages
from nodewire.llm.kv.speculative_tree import Tree
from nodewire.protocol.model.kv_pages import PAGE, pages_of
from nodewire.weights.mxint8 import narrowed, row_bytes, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.spec.config import DecoderConfig


class Spare(Protocol):
    """Who uses pages that no lane has, and makes way for one that needs them."""

    def make_way(self, count: int) -> None:
        """Give back what `count` pages take; all of it where that is not enough for them to lie together."""


class Lanes:
    """Cells for `slots` lanes of `positions`, or for more of fewer.

    `cells`: per layer [sides, kv_heads, cells, head_dim], of which `keys` are the first side and `values` the last; of
    latents, which are both, there is one. With `in_blocks` they are MXINT8, uint8 with a row's scales before its codes
    (nodewire.weights.mxint8), and are widened as they are read.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layers: int,
        slots: int,
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        in_blocks: bool = False,
        beyond: bool = False,
    ) -> None:
        """`beyond`: with a page more, which is no lane's (`kv/static_buffers.py`)."""
        self._dtype, self._width, self._in_blocks = dtype, config.head_dim, in_blocks
        stored, width = (torch.uint8, row_bytes(config.head_dim)) if in_blocks else (dtype, config.head_dim)
        size = pages_of(positions)
        self.beyond = PAGE * slots * size
        """The first cell of that page."""
        shape = (config.sides, config.num_key_value_heads, self.beyond + PAGE * beyond, width)
        self.cells = [_zeros(shape, stored, device) for _ in range(layers)]
        self.sides = [[one[which] for one in self.cells] for which in range(config.sides)]
        self.keys, self.values = self.sides[0], self.sides[-1]
        self._short = config.short_positions(positions)
        self.numbers = torch.arange(self._short + positions, device=device)
        self.positions = positions
        self._pages = Pages(slots * size)
        self._lanes: list[Lane] = []
        self.spare: Spare | None = None

    def open(self, positions: int | None = None) -> Lane:
        """A lane of at most so many positions, or as many as one may have. Raises Busy: no pages are left for it."""
        most = self.positions if positions is None else positions
        count = pages_of(most)
        if self.spare is not None and not any(len(run) >= count for run in self.free):
            self.spare.make_way(count)
        pages = self._pages.allocate(count)
        if pages is None:
            self._gather()
            pages = self._pages.allocate(count)
            assert pages is not None
        lane = Lane(self, pages, most, self._short if most > self._short else 0)
        self._lanes.append(lane)
        return lane

    def close(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        self._pages.give_back(lane.pages)

    @property
    def count(self) -> int:
        """Of the pool's pages."""
        return self._pages.count

    @property
    def free(self) -> list[range]:
        """Its pages that nobody has, in runs."""
        return self._pages.free

    @property
    def free_rows(self) -> int:
        """How many they are."""
        return self._pages.free_count

    def page(self, number: int) -> list[Tensor]:
        """A page's keys, layer by layer, then its values, if they are others.

        Each is given as bytes [kv_heads, PAGE, bytes], not copied.
        """
        cells = slice(PAGE * number, PAGE * (number + 1))
        return [kept[:, cells].view(torch.uint8) for side in self.sides for kept in side]

    def stored(self, numbers: Tensor) -> Tensor:
        """Keys or values [.., head_dim] as cells hold them."""
        return narrowed(numbers) if self._in_blocks else numbers

    def widened(self, cells: Tensor) -> Tensor:
        """What is read of cells, [.., head_dim]: not copied, but for those in blocks."""
        return widened(cells, self._width, self._dtype) if self._in_blocks else cells

    def lend(self) -> int:
        """A page for `spare`. Raises Busy: none is free."""
        pages = self._pages.allocate(1)
        assert pages is not None
        return pages.start

    def take_back(self, number: int) -> None:
        """What was lent."""
        self._pages.give_back(range(number, number + 1))

    def _gather(self) -> None:
        """Move all lanes to the beginning, in their order, so that what is free lies together. Nothing is lent then."""
        end = 0
        for lane in sorted(self._lanes, key=lambda one: one.pages.start):
            self._move(lane, end)
            end = lane.pages.stop
        self._pages = Pages(self._pages.count)
        self._pages.allocate(end)

    def _move(self, lane: Lane, to: int) -> None:
        """Have a lane begin at page `to`, which is its first or one before it."""
        source, place, cells = PAGE * lane.pages.start, PAGE * to, PAGE * len(lane.pages)
        step = source - place  # what is copied at once must not overlap what it is copied from
        for kept in chain.from_iterable(self.sides) if step else ():
            for first in range(0, cells, step):
                n = min(step, cells - first)
                kept[:, place + first : place + first + n] = kept[:, source + first : source + first + n]
        lane.pages = range(to, to + len(lane.pages))


class Lane:
    """At most `positions` cells in `pages` of `lanes`: `length` committed ones, then those of `tree`.

    The angles of its first position are in row `angles` of their tables.
    """

    def __init__(self, lanes: Lanes, pages: range, positions: int, angles: int) -> None:
        self.lanes, self.pages, self.positions, self.angles = lanes, pages, positions, angles
        self.length = 0
        self.tree = Tree()

    @property
    def start(self) -> int:
        """The pool's cell that is its first."""
        return PAGE * self.pages.start

    def write(self, layer: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Put rows [n, kv_heads, head_dim] into the cells from `first` on; latents are keys."""
        place = slice(self.start + first, self.start + first + len(keys))
        for side, rows in zip(self.lanes.sides, (keys, values), strict=False):
            side[layer][:, place] = self.lanes.stored(rows).transpose(0, 1)

    def write_row(self, layer: int, cell: int, both: Tensor) -> None:
        """Put one row's keys and values [2, kv_heads, head_dim] into a cell."""
        self.lanes.cells[layer].select(2, self.start + cell).copy_(self.lanes.stored(both))

    def read(self, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, end - first, head_dim]."""
        sides = [self.lanes.widened(one) for one in self.lanes.cells[layer].narrow(2, self.start + first, end - first)]
        return sides[0], sides[-1]

    def keep(self, path: Sequence[int]) -> None:
        """Have live cells join the committed run; those that do not descend from the last of them are gone.

        Raises BadFrame: they are no path from the run's end.
        """
        tree, order = self.tree.kept(path)
        stays = next((new for new, old in enumerate(order) if new != old), len(order))
        if stays < len(order):
            source = torch.tensor(order[stays:], device=self.lanes.numbers.device)
            live = slice(self.start + self.length, self.start + self.length + len(self.tree))
            for kept in chain.from_iterable(self.lanes.sides):
                cells = kept[:, live]
                cells[:, stays : len(order)] = cells[:, source]
        self.length += len(path)
        self.tree = tree


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros.

    On a CPU, where torch would write them all, they count for the worker's cap at once, and take memory where they are
    written.
    """
    count = math.prod(shape)
    if device.type != "cpu" or not count:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)
