"""Which pages of a pool are free. Whoever takes some gets them in one run.

The pool has as many regions as slots, each as large as a session may be, and no run crosses from one into the next:
sessions that are fewer than the slots always fit, whatever was taken and given back before them, and short ones share
a region. (Runs put together across regions would have to be copied together for every layer to be read.)
"""

from __future__ import annotations

from nodewire.errors import Busy

PAGE = 64
"""Cells of a page: positions whose keys and values it holds."""


def pages_of(positions: int) -> int:
    """How many hold so many positions."""
    return -(-positions // PAGE)


class Pages:
    """Numbers 0 .. regions * size - 1; those that are free stand in `free`, as runs, in order."""

    def __init__(self, regions: int, size: int) -> None:
        self.size = size
        self.free = [range(size * region, size * (region + 1)) for region in range(regions)]

    def take(self, count: int) -> range:
        """So many pages, at most a region's, out of the smallest run that has them.

        Raises:
            Busy: there is none.
        """
        enough = [run for run in self.free if len(run) >= count]
        if not enough:
            raise Busy("slots", f"no {count} pages of {PAGE} positions are free in one place")
        run = min(enough, key=len)
        place = self.free.index(run)
        self.free[place : place + 1] = [rest] if (rest := run[count:]) else []
        return run[:count]

    def give_back(self, run: range) -> None:
        joined: list[range] = []
        for one in sorted([*self.free, run], key=lambda run: run.start):
            if joined and joined[-1].stop == one.start and one.start % self.size:
                joined[-1] = range(joined[-1].start, one.stop)
            else:
                joined.append(one)
        self.free = joined
