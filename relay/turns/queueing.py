"""Turns for work that waits: the next one is of the origin for which least has been done.

Work is measured after it is done, in any unit. An origin that was idle starts where the busy ones stand now: idleness
saves up nothing, and an origin that asks little goes before all that ask much. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

Path = Sequence[str]
"""An origin, and origins within it: an address and a connection from there, say."""
_MAX_IDLE = 1_024
W = TypeVar("W")


class Turns(Generic[W]):
    """Work that waits, by where it comes from."""

    def __init__(self) -> None:
        self.done = 0.0
        """The work done for this origin, on the scale of the origins beside it."""
        self._own: deque[W] = deque()
        self._within: dict[str, Turns[W]] = {}
        self._busy: dict[str, Turns[W]] = {}
        """Of these, the ones with work that waits."""
        self._now = 0.0
        """Where the origin stood that was last served."""

    @property
    def waits(self) -> bool:
        return bool(self._own or self._busy)

    def add(self, path: Path, work: W) -> None:
        if not path:
            self._own.append(work)
            return
        origin = self._at(path[0])
        if not origin.waits:
            origin.done = max(origin.done, self._now)
            self._busy[path[0]] = origin
        origin.add(path[1:], work)

    def take(self) -> W:
        """The work whose turn it is. Raises IndexError: none waits."""
        if self._own or not self._busy:
            return self._own.popleft()
        name = min(self._busy, key=lambda name: self._busy[name].done)
        origin = self._busy[name]
        self._now = max(self._now, origin.done)
        work = origin.take()
        if not origin.waits:
            del self._busy[name]
        return work

    def charge(self, path: Path, amount: float) -> None:
        """Note that so much was done for `path`."""
        if path:
            origin = self._at(path[0])
            origin.done += amount
            origin.charge(path[1:], amount)

    def _at(self, name: str) -> Turns[W]:
        origin = self._within.get(name)
        if origin is None:
            if len(self._within) >= 2 * _MAX_IDLE + len(self._busy):
                self._forget()
            origin = self._within[name] = Turns()
            origin.done = self._now
        return origin

    def _forget(self) -> None:
        """Drop idle origins, those first that are the least ahead."""
        idle = sorted((o.done, name) for name, o in self._within.items() if name not in self._busy)
        for _, name in idle[: max(0, len(idle) - _MAX_IDLE)]:
            del self._within[name]
