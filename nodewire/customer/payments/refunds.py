"""Complaints about providers that claimed payment and committed to nothing, and what their bonds give back.

All of it is made from what relays have: a process that dies loses no refund that the next one does not ask for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.verification import complaint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.protocol.verification.complaint import Complaint

ASKED_EPOCHS = 64
"""How old a complaint may be whose refund is still asked for."""
log = logging.getLogger("nodewire.customer")


class Refunds:
    """One customer's."""

    def __init__(self, keys: Keys, market: Market, pool: Pool, holder: BondHolder) -> None:
        self._keys, self._market, self._pool, self._holder = keys, market, pool, holder
        self._open: dict[str, Complaint] | None = None
        """By the case's key; None before relays were asked."""
        self.got_msat: dict[str, int] = {}
        """What came back since this began, by request."""

    async def complain(self, claims: Iterable[Event]) -> None:
        """Publish a complaint about each of these claims (kind 7000). Raises as `Pool.publish`."""
        for claim in claims:
            digest = self._market.committee_digest
            event = complaint.build(self._keys, digest, claim, created_at=int(time.time()))
            await self._pool.publish(event, timeout_s=10.0)
            one = complaint.parse(event)
            log.warning(
                "%s was paid for chunk %d of job %s and committed to nothing: a complaint is published",
                one.provider[:8],
                one.due.chunk,
                one.request[:8],
            )
            if self._open is not None:
                self._open[one.key] = one

    async def run(self) -> None:
        """Collect what certified complaints give back, until cancelled."""
        while True:
            try:
                await self.collect()
            except NodewireError as error:
                log.info("refunds cannot be asked for: %s", error)
            await asyncio.sleep(self._market.committee.epoch_ms / 1000)

    async def collect(self) -> int:
        """Take what the bonds' holder has for this customer; returns msat. Raises as `Pool.fetch_all`."""
        if self._open is None:
            self._open = await self._read()
        got_msat = 0
        oldest = self._market.committee.epoch_at(int(time.time() * 1000)) - ASKED_EPOCHS
        for key, one in list(self._open.items()):
            try:
                settled = await self._holder.case(key)
                if settled.due.get(self._keys.public):
                    msat = await self._holder.claim(self._keys, key)
                    got_msat += msat
                    self.got_msat[one.request] = self.got_msat.get(one.request, 0) + msat
                    log.warning("%d msat came back of the bond of %s", msat, one.provider[:8])
                    await self._holder.collect(self._keys)
                del self._open[key]
            except NotFound:
                if one.last_epoch(self._market.committee) < oldest:
                    del self._open[key]
            except NodewireError as error:
                log.info("the refund for chunk %d of job %s: %s", one.due.chunk, one.request[:8], error)
        return got_msat

    async def _read(self) -> dict[str, Complaint]:
        since = int(time.time()) - ASKED_EPOCHS * self._market.committee.epoch_ms // 1000
        mine = Filter(kinds=frozenset({kinds.EVIDENCE}), authors=frozenset({self._keys.public}), since=since)
        found = {}
        for event in await self._pool.fetch_all([mine]):
            try:
                one = complaint.parse(event)
            except BadInput:
                continue
            if one.committee == self._market.committee_digest:
                found[one.key] = one
        return found
