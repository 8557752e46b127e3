"""What a provider says of itself: its ad (31990) and its beats (11998)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from nodewire.config import ProviderConfig
from nodewire.errors import NodewireError
from nodewire.market import Market
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol import ad as ads
from nodewire.protocol import beat as beats
from nodewire.protocol.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.beat import Beat
from nodewire.protocol.coordinates import Coordinates
from nodewire.provider.bonding import Bonding
from nodewire.provider.serving import Served

log = logging.getLogger("nodewire.provider")
_PUBLISH_S = 5.0


def describe(
    config: ProviderConfig, public: str, served: Iterable[Served], *, wire: tuple[str, ...], lnurl: str, committee: str
) -> Ad:
    """The ad of what is loaded and where it is reached."""
    offers = tuple(
        ManifestOffer(
            manifest=s.digest,
            tasks=tuple(
                TaskOffer(task=task, price_msat=s.prices_msat[task], us_per_position=s.us_per_position[task])
                for task in s.tasks
            ),
            slots=s.slots,
        )
        for s in served
    )
    charges = any(task.price_msat for offer in offers for task in offer.tasks)
    return Ad(
        name=config.name or f"nodewire-{public[:8]}",
        manifests=offers,
        wire=wire,
        lnurl=lnurl if charges else "",
        pow_bits=config.pow_bits,
        memory_bytes=config.worker.memory,
        hardware=config.hardware,
        region=config.region,
        relays=config.relays,
        committees=(committee,),
    )


class Announcer:
    """Publishes the ad once, then beats."""

    def __init__(
        self,
        keys: Keys,
        pool: Pool,
        market: Market,
        ad: Ad,
        served: Iterable[Served],
        bonding: Bonding,
        where: Callable[[], Coordinates],
    ) -> None:
        """`where`: this node's network coordinates now."""
        self._keys = keys
        self._pool = pool
        self._market = market
        self._ad = ad
        self._served = tuple(served)
        self._bonding = bonding
        self._where = where
        self._beaten_s = 0

    async def run(self) -> None:
        """Announce and beat until cancelled."""
        event = await self._announce()
        while True:
            if self._bonding.is_due:
                try:
                    event = await self._announce()
                except NodewireError as error:  # the ad that stands names the bond until its statement expires
                    log.warning("the bond's statement is not renewed: %s", error)
            epoch = self._market.committee.epoch_at(int(time.time() * 1000))
            if epoch >= 0:
                await self._beat(event.id, epoch)
            await asyncio.sleep(self._market.committee.beat_ms / 1000)

    async def _announce(self) -> Event:
        """Publish the ad, with the bond's statement that it names."""
        ad = self._ad
        if self._bonding.amount_msat:
            statement = await self._bonding.stated()
            await self._pool.publish(statement, timeout_s=30.0)
            ad = ad.model_copy(update={"bond": statement.id, "bond_msat": self._bonding.amount_msat})
        event = ads.build(self._keys, ad, created_at=int(time.time()))
        await self._pool.publish(event, timeout_s=30.0)
        return event

    async def _beat(self, ad: str, epoch: int) -> None:
        slots = sum(s.slots for s in self._served)
        beat = Beat(
            committee=self._market.committee_digest,
            last=self._market.last_body(),
            epoch=epoch,
            ad=ad,
            load_ppm=sum(s.busy for s in self._served) * 1_000_000 // slots,
            free={s.digest: s.free for s in self._served},
            coordinates=self._where(),
        )
        expires_at_s = beats.expires_at_s(self._market.committee, epoch)
        # A relay keeps the newer of two beats, by the second.
        self._beaten_s = max(int(time.time()), self._beaten_s + 1)
        event = beats.build(self._keys, beat, created_at=self._beaten_s, expires_at_s=expires_at_s)
        try:
            await self._pool.publish(event, timeout_s=_PUBLISH_S)
        except NodewireError as error:
            log.warning("beat: %s", error)
