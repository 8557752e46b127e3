"""An oracle whose clock is off has its epochs to itself: nobody certifies with it. So it says so, now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import NotFound
from nodewire.store import clock_offset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodewire.protocol.committee.committee import Committee

CHECK_S = 300.0
_log = logging.getLogger(__name__)


class ClockWatch:
    """`await run()` until cancelled. `measure` says by how many seconds this clock is ahead."""

    def __init__(self, committee: Committee, measure: Callable[[], Awaitable[float]]) -> None:
        self._most_s = committee.skew_ms / 1000 + clock_offset.HTTP_DATE_S
        self._measure = measure
        self.offset_s = 0.0
        """As it was last measured."""

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(CHECK_S)

    async def look(self) -> bool:
        """Whether the clock is within a skew of the others', as far as anybody says."""
        try:
            self.offset_s = await self._measure()
        except NotFound as error:
            _log.info("%s", error)
            return True
        if abs(self.offset_s) <= self._most_s:
            return True
        _log.error(
            "this oracle's clock is %s. Nothing is certified with it until then", clock_offset.describe(self.offset_s)
        )
        return False
