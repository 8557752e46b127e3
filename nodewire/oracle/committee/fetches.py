"""Fetches of events by id: the ids of one moment go together, and the fetches and the ids that wait are bounded."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from nodewire.core.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

_TOGETHER_S = 0.02
"""Beats come in crowds, and so do the ads that they name."""
IDS_PER_FETCH = 256


class Fetches:
    """Looks for the events whose ids are `add`ed.

    Args:
        fetch: looks for these ids, and raises nothing.
        spawn: has work done beside.
        at_a_time: fetches under way.
        most: ids that wait; beyond, the oldest is not looked for.

    """

    def __init__(
        self,
        fetch: Callable[[set[str]], Awaitable[None]],
        spawn: Callable[[Coroutine[None, None, None]], None],
        *,
        at_a_time: int,
        most: int,
    ) -> None:
        self._fetch, self._spawn = fetch, spawn
        self._at_a_time = at_a_time
        self._ids = BoundedDict[str, None](most)
        self._under_way = 0
        self._is_gathering = False

    def add(self, ids: Iterable[str]) -> None:
        """Look for these, too."""
        self._ids.update(dict.fromkeys(ids))
        if self._ids and not self._is_gathering and self._under_way < self._at_a_time:
            self._is_gathering = True
            self._under_way += 1
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.sleep(_TOGETHER_S)
            self._is_gathering = False
            while ids := set(islice(self._ids, IDS_PER_FETCH)):
                for id_ in ids:
                    del self._ids[id_]
                await self._fetch(ids)
        finally:
            self._under_way -= 1
