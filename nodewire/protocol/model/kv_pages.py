"""Pages: what a session takes of a task's memory, and for how many sessions its slots have room. nips/27."""

from __future__ import annotations

from nodewire.errors import Busy

PAGE = 64
"""Positions of a page."""
MAX_SHARING = 16
"""Sessions for each slot, however short they are: a driver keeps something for every one beside its positions."""


def pages_of(positions: int) -> int:
    """How many hold so many positions."""
    return -(-positions // PAGE)


class Room:
    """The pages of `slots` sessions of `positions` each: for fewer long ones, or more short ones.

    Where there are no positions (0) a session is a slot.
    """

    def __init__(self, slots: int, positions: int) -> None:
        self.size = max(1, pages_of(positions))
        """Pages of a slot."""
        self.pages = slots * self.size
        self.taken = 0
        self._sessions, self._most = 0, slots * MAX_SHARING

    @property
    def slots(self) -> int:
        """How many slots' worth of pages is free; one that is begun counts, for short sessions fit in it."""
        return 0 if self._sessions >= self._most else -(-(self.pages - self.taken) // self.size)

    def allocate(self, positions: int | None = None) -> int:
        """Take the pages of a session of so many positions, or a slot's; how many they are.

        Raises:
            Busy: so many are not free.

        """
        count = self.size if positions is None else min(self.size, max(1, pages_of(positions)))
        if self._sessions >= self._most:
            raise Busy("slots", f"{self._sessions} sessions are open")
        if count > (free := self.pages - self.taken):
            raise Busy("slots", f"a session takes {count} pages of {PAGE} positions, {free} are free")
        self.taken += count
        self._sessions += 1
        return count

    def give(self, count: int) -> None:
        """Give back what a session took."""
        self.taken -= count
        self._sessions -= 1
