"""A trainer's ad, which lasts some minutes: published anew while its provider can serve, and ended when it cannot."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.training.protocol import trainer_ad

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.training.protocol.trainer_ad import Trainer

log = logging.getLogger("nodewire.provider")

LASTS_S = 600
AGAIN_S = 180.0
"""An ad outlasts two that could not be published."""
_ENDS_S = 1
"""A relay refuses what has expired when it comes, and would keep the ad before it."""
_FIRST_PUBLISH_S = 30.0
_PUBLISH_S = 5.0
_LAST_PUBLISH_S = 2.0


class TrainerAnnouncer:
    """Of one ad."""

    def __init__(self, keys: Keys, pool: Pool, ad: Trainer) -> None:
        self._keys = keys
        self._pool = pool
        self._ad = ad
        self._said_s = 0
        self._is_paused = False
        self._changed = asyncio.Event()

    def pause(self, *, is_paused: bool) -> None:
        """Have `renew` take the ad back while it is paused, and publish it again after that, at once."""
        self._is_paused = is_paused
        self._changed.set()

    async def announce(self) -> None:
        """Publish the ad. Raises RelayRefused, TimedOut."""
        await self._publish(LASTS_S, _FIRST_PUBLISH_S)

    async def renew(self) -> None:
        """Publish it again and again until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._changed.wait()
            self._changed.clear()
            if self._is_paused:
                await self.end()
                continue
            try:
                await self._publish(LASTS_S, _PUBLISH_S)
            except NodewireError as error:
                log.warning("the trainer's ad is not renewed: %s", error)

    async def end(self) -> None:
        """Publish it with the end that is now, if it was published: nobody is to ask this provider any more."""
        if not self._said_s:
            return
        try:
            await self._publish(_ENDS_S, _LAST_PUBLISH_S)
        except NodewireError as error:
            log.warning("the trainer's ad stands for %d s at most: %s", LASTS_S, error)

    async def _publish(self, lasts_s: int, timeout_s: float) -> None:
        # A relay keeps the newer of two ads, by the second.
        self._said_s = max(int(time.time()), self._said_s + 1)
        event = trainer_ad.build(self._keys, self._ad, created_at=self._said_s, expires_at_s=self._said_s + lasts_s)
        await self._pool.publish(event, timeout_s=timeout_s)
