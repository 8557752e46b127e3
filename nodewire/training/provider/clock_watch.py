"""Clocks: how far apart two may be that nobody need be told of, and hearing that this machine's was set."""

from __future__ import annotations

import asyncio
import time

CLOCKS_S = 60.0
"""Clocks that are less far apart are not told of it."""
_LOOK_S = 2.0


async def until_set() -> None:
    """Return when the wall clock was set by more than a few seconds.

    What was asked of relays by it asks for the wrong time.
    """
    ahead_s = time.time() - time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_S)
        if abs(time.time() - time.monotonic() - ahead_s) > CLOCKS_S / 4:
            return
