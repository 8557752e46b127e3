"""What a provider says of itself: its ad (31990), again when it offers something else, and its beats (11998)."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.protocol.market import ad as ads
from nodewire.protocol.market import ad_profile
from nodewire.protocol.market import heartbeat as beats
from nodewire.protocol.market.ad import Ad, ManifestOffer, TaskOffer
from nodewire.protocol.market.ad_profile import UNPROFILED, PublishedProfile
from nodewire.protocol.market.heartbeat import Beat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodewire.config import ProviderConfig
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.protocol.market.coordinates import Coordinates
    from nodewire.protocol.market.observation import Observation
    from nodewire.provider.market.bond import BondKeeper
    from nodewire.provider.tasks.loader import ServedManifest
    from nodewire.provider.tasks.registry import Specializations

log = logging.getLogger("nodewire.provider")
_PUBLISH_S = 5.0


def describe(
    config: ProviderConfig,
    public: str,
    served: Iterable[ServedManifest],
    *,
    wire: tuple[str, ...],
    lnurl: str,
    committee: str,
    unit_msat: int = 1,
) -> Ad:
    """The ad of what is loaded and where it is reached. `unit_msat`: what the wallet takes multiples of."""
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
        name=name_of(config, public),
        manifests=offers,
        wire=wire,
        lnurl=lnurl if charges else "",
        pow_bits=config.pow_bits,
        memory_bytes=config.worker.memory,
        hardware=config.hardware,
        region=config.region,
        relays=config.relays,
        committees=(committee,),
        lookahead=config.lookahead,
        cached_ppm=config.found_ppm,
        credit=_credit(config, unit_msat),
    )


def name_of(config: ProviderConfig, public: str) -> str:
    return config.name or f"nodewire-{public[:8]}"


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a heartbeat says of the node and of others."""

    where: Callable[[], Coordinates]
    """This node's network coordinates now."""
    profile: PublishedProfile = UNPROFILED
    """What was measured here."""
    observed: Callable[[], tuple[str, tuple[Observation, ...]] | None] = lambda: None
    """What was found of others, and the digest of the body that drew them."""


class Announcer:
    """Publishes the ad whenever what is offered changes, and beats. While nothing is offered it says nothing new."""

    def __init__(
        self,
        keys: Keys,
        pool: Pool,
        market: Market,
        ad: Callable[[Iterable[ServedManifest]], Ad],
        held: Specializations,
        bonding: BondKeeper,
        measured: Measurements,
    ) -> None:
        """`ad` of what is offered, without its bond."""
        self._keys = keys
        self._pool = pool
        self._market = market
        self._ad = ad
        self._held = held
        self._said: tuple[ServedManifest, ...] = ()
        """What the ad that stands offers."""
        self._said_s = 0
        self._bonding = bonding
        self._where = measured.where
        self._profile = measured.profile
        self._observed = measured.observed
        self._beaten_s = 0

    async def run(self) -> None:
        """Announce and beat until cancelled. Raises what keeps the first ad from being published."""
        event: Event | None = None
        while True:
            self._held.changed.clear()
            is_news = self._held.offered != self._said
            if self._held.offered and (is_news or self._bonding.is_due):
                try:
                    event = await self._announce(self._held.offered)
                except NodewireError as error:
                    if event is None:
                        raise
                    # the ad that stands names the bond until its statement expires, and what it offers is still held
                    log.warning("the %s", f"new ad is not out: {error}" if is_news else f"bond is not renewed: {error}")
            epoch = self._market.committee.epoch_at(int(time.time() * 1000))
            if event is not None and epoch >= 0:
                await self._beat(event.id, epoch)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._market.committee.beat_ms / 1000):
                    await self._held.changed.wait()

    async def _announce(self, offered: tuple[ServedManifest, ...]) -> Event:
        """Publish the ad, with the bond's statement that it names."""
        ad = self._ad(offered)
        if self._bonding.amount_msat:
            statement = await self._bonding.stated()
            await self._pool.publish(statement, timeout_s=30.0)
            ad = ad.model_copy(update={"bond": statement.id, "bond_msat": self._bonding.amount_msat})
        self._said_s = max(int(time.time()), self._said_s + 1)  # of two ads a relay keeps the newer, by the second
        event = ads.build(self._keys, ad, created_at=self._said_s, profile=ad_profile.build(self._profile, ad))
        await self._pool.publish(event, timeout_s=30.0)
        self._said = offered
        await self._held.published(offered)
        return event

    async def _beat(self, ad: str, epoch: int) -> None:
        offered = self._held.offered
        is_pending = bool(offered) and offered != self._said  # until another ad is out, the one that stands holds
        free = () if self._held.is_paused else self._said if is_pending else offered
        last, observed = self._observed() or (self._market.last_body(), ())
        beat = Beat(
            committee=self._market.committee_digest,
            last=last,
            epoch=epoch,
            ad=ad,
            load_ppm=self._held.load_ppm(),
            free={s.digest: s.free if s in free else 0 for s in self._said},
            coordinates=self._where(),
            observed=observed,
        )
        expires_at_s = beats.expires_at_s(self._market.committee, epoch)
        # A relay keeps the newer of two beats, by the second.
        self._beaten_s = max(int(time.time()), self._beaten_s + 1)
        event = beats.build(self._keys, beat, created_at=self._beaten_s, expires_at_s=expires_at_s)
        try:
            await self._pool.publish(event, timeout_s=_PUBLISH_S)
        except NodewireError as error:
            log.warning("beat: %s", error)


def _credit(config: ProviderConfig, unit_msat: int) -> ads.CreditOffer | None:
    """What customers may owe; None where it is nothing."""
    credit = config.credit
    if not credit.first_msat and not credit.most_msat:
        return None
    return ads.CreditOffer(first_msat=credit.first_msat, most_msat=credit.most_msat, unit_msat=unit_msat)
