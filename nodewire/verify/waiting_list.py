"""Turns at something scarce: by rank, then by arrival, within caps that are shared under a name.

A cap bounds one party's part of what all share: a key's, an address's, that of all nodes without a bond. A turn for
which a cap leaves no room is passed over until it does, and keeps its place in line.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass(frozen=True, slots=True)
class Cap:
    """A turn takes `amount` of the `most` that all turns under this name may take at once."""

    name: str
    most: int
    amount: int = 1


@dataclass(order=True, slots=True)
class _Place:
    rank: int
    number: int
    caps: tuple[Cap, ...] = field(compare=False)
    ready: asyncio.Future[None] = field(compare=False)


class WaitingList:
    """The lowest rank is served first. A turn that takes more than a cap has is served alone under that cap."""

    def __init__(self) -> None:
        self._waiting: list[_Place] = []
        self._taken: Counter[str] = Counter()
        self._numbers = count()

    @asynccontextmanager
    async def turn(self, rank: int, caps: Sequence[Cap]) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        place = _Place(rank, next(self._numbers), tuple(caps), asyncio.get_running_loop().create_future())
        insort(self._waiting, place)
        try:
            self._serve()
            await place.ready
            yield
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                for cap in place.caps:
                    self._taken[cap.name] -= min(cap.amount, cap.most)
                    if not self._taken[cap.name]:
                        del self._taken[cap.name]
            self._serve()

    def _serve(self) -> None:
        for place in [one for one in self._waiting if not one.ready.done()]:
            if all(self._taken[cap.name] + min(cap.amount, cap.most) <= cap.most for cap in place.caps):
                self._waiting.remove(place)
                for cap in place.caps:
                    self._taken[cap.name] += min(cap.amount, cap.most)
                place.ready.set_result(None)
