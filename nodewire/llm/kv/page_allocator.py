"""Which pages of a pool are free. Whoever takes some gets them in one run, which a layer reads without a copy.

Whether so many are free at all is all that decides who gets some: where they do not lie together, lanes are moved
(`sequence_cache.Lanes`).
"""

from __future__ import annotations

from nodewire.errors import Busy
from nodewire.protocol.model.kv_pages import PAGE


class Pages:
    """Numbers 0 .. `count` - 1; those that are free stand in `free`, as runs, in order."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = [range(count)]

    @property
    def free_count(self) -> int:
        return sum(map(len, self.free))

    def allocate(self, count: int) -> range | None:
        """So many pages, out of the smallest run that has them; None if they do not lie together.

        Raises:
            Busy: so many are not free.

        """
        if count > self.free_count:
            raise Busy("slots", f"{count} pages of {PAGE} positions are wanted, {self.free_count} are free")
        enough = [run for run in self.free if len(run) >= count]
        if not enough:
            return None
        run = min(enough, key=len)
        place = self.free.index(run)
        self.free[place : place + 1] = [rest] if (rest := run[count:]) else []
        return run[:count]

    def give_back(self, run: range) -> None:
        joined: list[range] = []
        for one in sorted([*self.free, run], key=lambda run: run.start):
            if joined and joined[-1].stop == one.start:
                joined[-1] = range(joined[-1].start, one.stop)
            else:
                joined.append(one)
        self.free = joined
