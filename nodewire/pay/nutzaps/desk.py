"""Hears the nutzaps to a provider over its relays, has them claimed, and books them at its till."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost, NodewireError, TimedOut
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts import zaps
from nodewire.pay.lightning.wallet import Receipt

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport
    from nodewire.pay.accounts.debts import Key
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.accounts.till import Till
    from nodewire.pay.nutzaps.claims import ClaimedNutzap, NutzapClaims

KEPT_S = 30 * 86_400
"""A nutzap is looked for so long after its date."""
_OVERLAP_S = 86_400
"""A relay that was away for no longer than that is asked again when it is back."""
_AGAIN_S, _LONGEST_S = 1.0, 60.0
_TOLD_S = 3_600.0
OnSettled = Callable[["Due"], None]
log = logging.getLogger("nodewire.pay")


class NutzapDesk:
    """Of the provider that `info`, its signed 10019, is of. `claims`: for each mint that it takes ecash of."""

    def __init__(
        self,
        info: Event,
        pool: EventTransport,
        till: Till,
        ledger: Ledger,
        claims: Sequence[NutzapClaims],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._info, self._pool, self._till, self._ledger, self._now_s = info, pool, till, ledger, now_s
        self._more = {one: asyncio.Event() for one in claims}

    async def run(self, on_settled: OnSettled | None = None) -> None:
        """Until cancelled; tells `on_settled` each due that a nutzap settles."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._announce())
            for claims in self._more:
                group.create_task(self._work(claims, on_settled))
                group.create_task(self._follow(claims, on_settled))

    async def _announce(self) -> None:
        """Keep the 10019 on the relays."""
        pause_s = _AGAIN_S
        while True:
            try:
                await self._pool.publish(self._info)
                pause_s = _TOLD_S
            except NodewireError as error:
                log.warning("no relay has what nutzaps are taken: %s", ascii(str(error)))
                pause_s = min(_LONGEST_S, 2 * pause_s)
            await asyncio.sleep(pause_s)

    async def _follow(self, claims: NutzapClaims, on_settled: OnSettled | None) -> None:
        """Enter what comes, and claim at once what is a customer's. Strangers have a turn of their own (`_work`)."""
        wanted = Filter(
            kinds=frozenset({nip61.NUTZAP}),
            tags={"p": frozenset({self._info.pubkey}), "u": frozenset({claims.url})},
        )
        pause_s = _AGAIN_S
        while True:
            now_s = int(self._now_s())
            async with self._pool.subscribe([replace(wanted, since=now_s - _OVERLAP_S)]) as events:
                try:
                    for event in reversed(await self._pool.fetch_all([replace(wanted, since=now_s - KEPT_S)])):
                        await self._take(claims, event, on_settled)
                    async for event in events:
                        pause_s = _AGAIN_S
                        await self._take(claims, event, on_settled)
                        if events.dropped:  # what was lost is on the relays
                            break
                except NodewireError as error:
                    log.info("nutzaps cannot be looked for: %s", ascii(str(error)))
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_S, 2 * pause_s)

    async def _take(self, claims: NutzapClaims, event: Event, on_settled: OnSettled | None) -> None:
        try:
            one = claims.enter(event, is_known=self._ledger.is_customer)
        except NodewireError as error:
            log.info("a nutzap by %s does not count: %s", event.pubkey[:8], ascii(str(error)))
            return
        if one is None:
            return
        if one.is_bound and self._ledger.is_customer(event.pubkey):
            try:
                await claims.claim(one.id)
            except NodewireError as error:
                log.warning("nutzap %s waits: %s", one.id[:8], ascii(str(error)))
            self._book(claims, on_settled)
        self._more[claims].set()

    async def _work(self, claims: NutzapClaims, on_settled: OnSettled | None) -> None:
        """Claim what waits, one after the other, and what a crash or a mint that was away left."""
        pause_s, more = _AGAIN_S, self._more[claims]
        while True:
            more.clear()
            try:
                await claims.finish()
                await claims.claim_waiting()
                next_s = claims.next_s()
                wait_s = None if next_s is None else max(0.0, next_s - self._now_s())
                pause_s = _AGAIN_S
            except NodewireError as error:
                is_away = isinstance(error, LinkLost | TimedOut)
                log.log(logging.INFO if is_away else logging.ERROR, "nutzaps at %s wait: %s", claims.url, error)
                await asyncio.sleep(pause_s)
                wait_s, pause_s = 0.0, min(_LONGEST_S, 2 * pause_s)
            self._book(claims, on_settled)
            try:
                async with asyncio.timeout(wait_s):
                    await more.wait()
            except TimeoutError:
                continue

    def _book(self, claims: NutzapClaims, on_settled: OnSettled | None) -> None:
        """Enter at the till what was claimed."""
        for one in claims.claimed():
            came = Receipt("", one.payment_hash, one.preimage, one.amount_msat, one.at_s)
            settled = self._till.take_nutzap(
                came,
                claims.id,
                nutzap=one.nutzap.id,
                sender=one.sender,
                named=_named(one),
                comment=one.nutzap.content,
            )
            claims.booked(one.nutzap.id)
            for due in settled:
                if on_settled is not None:
                    on_settled(due)


def _named(one: ClaimedNutzap) -> Key | None:
    """The chunk that a nutzap names, if its author is known and names one."""
    if not one.sender or not zaps.is_for_chunk(one.nutzap):
        return None
    try:
        return zaps.chunk_of(one.nutzap)
    except NodewireError as error:
        log.info("nutzap %s names no chunk: %s", one.nutzap.id[:8], error)
        return None
