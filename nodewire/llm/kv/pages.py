"""Which pages of a pool are free: runs of page numbers, taken as whole as they can be had."""

from __future__ import annotations

from collections.abc import Sequence

from nodewire.errors import Busy

PAGE = 64
"""Cells of a page: positions whose keys and values it holds."""


def pages_of(positions: int) -> int:
    """How many hold so many positions."""
    return -(-positions // PAGE)


class Pages:
    """Numbers 0 .. count-1; those that are free stand in `free`, as runs that touch nowhere, in order."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = [range(count)] if count else []

    def take(self, count: int) -> list[range]:
        """So many pages: the smallest run that has them, or where none does, the largest ones.

        Raises:
            Busy: there are not so many.
        """
        have = sum(map(len, self.free))
        if have < count:
            raise Busy("slots", f"{count} pages of {PAGE} positions are needed, {have} of {self.count} are free")
        enough = [run for run in self.free if len(run) >= count]
        order = [min(enough, key=len)] if enough else sorted(self.free, key=len, reverse=True)
        taken: list[range] = []
        for run in order:
            part = run[: count - sum(map(len, taken))]
            if not part:
                break
            taken.append(part)
            place = self.free.index(run)
            self.free[place : place + 1] = [rest] if (rest := run[len(part) :]) else []
        return taken

    def give_back(self, runs: Sequence[range]) -> None:
        joined: list[range] = []
        for run in sorted([*self.free, *runs], key=lambda one: one.start):
            if joined and joined[-1].stop == run.start:
                joined[-1] = range(joined[-1].start, run.stop)
            else:
                joined.append(run)
        self.free = joined
