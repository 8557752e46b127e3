"""The ads of those who train, as relays send them: read once, and from then on only what is new."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, RelayRefused, TimedOut
from nodewire.nostr.nips import nip40
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.protocol import kinds
from nodewire.training.protocol import trainer_ad
from nodewire.training.protocol.trainer_ad import TOPIC, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.nostr.event import Event
    from nodewire.nostr.pool import Pool
    from nodewire.nostr.subscription import Subscription

_FETCH_S = 10.0
MAX_ADS = 16_384
"""Of so many trainers; who comes after them is not looked at."""
_AGAIN_S = 60.0
"""After so long all are read again: relays do not tell that one was deleted."""


class Ads:
    """Of one training. `close` ends the subscription."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._subscription: Subscription | None = None
        self._read_s = 0.0
        self._newest: dict[str, Event] = {}
        self._ads: dict[str, Trainer] = {}
        self._expires_s: dict[str, float] = {}

    async def now(self) -> Mapping[str, Trainer]:
        """The newest ad of everybody, by public key; malformed and expired ones are left out.

        Another mapping once that changes; an ad that is published again as it is changes nothing.

        Raises:
            RelayRefused, TimedOut: no relay answers.

        """
        subscription = self._subscription
        if subscription is None or subscription.dropped or time.monotonic() > self._read_s + _AGAIN_S:
            subscription = await self._open()
        changed: dict[str, Trainer | None] = {}
        for event in sorted(subscription.drain(), key=newest_first, reverse=True):
            if not self._is_newer(event):
                continue
            self._newest[event.pubkey] = event
            try:
                expires_at_s, ad = nip40.parse(event.tags), trainer_ad.parse(event)
            except NodewireError:
                continue  # the one before it stands
            self._expires_s[event.pubkey] = math.inf if expires_at_s is None else expires_at_s
            if self._ads.get(event.pubkey) != ad:
                changed[event.pubkey] = ad
            else:
                changed.pop(event.pubkey, None)
        now_s = int(time.time())
        for public in self._ads.keys() | changed.keys():
            if self._expires_s[public] < now_s:
                changed[public] = None
        if changed:
            self._ads = {public: ad for public, ad in {**self._ads, **changed}.items() if ad is not None}
        return self._ads

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def _is_newer(self, event: Event) -> bool:
        known = self._newest.get(event.pubkey)
        if known is None:
            return len(self._newest) < MAX_ADS
        return newest_first(event) < newest_first(known)

    async def _open(self) -> Subscription:
        """A subscription whose stored events are here."""
        self.close()
        wanted = Filter(kinds=frozenset({kinds.AD}), tags={"t": frozenset({TOPIC})})
        subscription = self._subscription = self._pool.subscribe([wanted])
        with suppress(TimeoutError):  # what has come so far counts, if any relay has answered
            await asyncio.wait_for(subscription.eose, _FETCH_S)
        if "eose" not in subscription.standing.values():
            self.close()
            self._subscription = None
            if subscription.closed:
                raise RelayRefused("ads", "; ".join(subscription.closed.values())[:200])
            raise TimedOut("ads", f"no relay answered within {_FETCH_S} s")
        self._read_s, self._newest, self._ads, self._expires_s = time.monotonic(), {}, {}, {}
        return subscription
