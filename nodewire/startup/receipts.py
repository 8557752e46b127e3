"""How a provider's zap receipts reach relays, and how those of its wallet's service reach its till."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Self

from nodewire.errors import BadConfig, BadInput, LinkLost, NodewireError, NotFound, TimedOut
from nodewire.net.address_policy import are_private
from nodewire.nostr import relay_visit
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip01 import Filter
from nodewire.pay.accounts.receipt_outbox import KEPT_S
from nodewire.pay.lightning import lnurl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodewire.config import ProviderConfig
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.till import Till
    from nodewire.pay.lightning.wallet import Wallet

_TIMEOUT_S = 10.0
_RECEIPTS_AT_ONCE = 8
_PAUSES_S = tuple(2.0**n for n in range(10))
"""Before a wallet is asked again for a payment that its service has receipted: 17 minutes together. A restart asks for
a week's receipts.
"""
log = logging.getLogger("nodewire.pay")


class ReceiptRelays:
    """Publishes to one relay that a zap request names, or to all of `pool`.

    Without `allow_private` only public addresses are dialled for a stranger's URL.
    """

    def __init__(self, pool: Pool, relays: Iterable[str], keys: Keys, *, allow_private: bool) -> None:
        self._pool = pool
        self._keys = keys
        self.allows_private = allow_private
        self._own = {spelled: url for url in relays if (spelled := _spelled(url))}

    @classmethod
    async def open(cls, pool: Pool, config: ProviderConfig, keys: Keys) -> Self:
        """Those of a provider's configuration."""
        private = config.wire.private or await are_private(config.relays)
        return cls(pool, config.relays, keys, allow_private=private)

    @property
    def own(self) -> frozenset[str]:
        """The pool's relays, as `relay_visit.parse` spells them."""
        return frozenset(self._own)

    async def publish(self, event: Event, relays: tuple[str, ...]) -> None:
        """As `receipt_outbox.Publish` has it."""
        if not relays:
            await self._pool.publish(event, _TIMEOUT_S)
        for url in relays:
            if url in self._own:
                await self._pool.publish_at(self._own[url], event, _TIMEOUT_S)
            else:
                await relay_visit.publish(
                    url, event, self._keys, allow_private=self.allows_private, timeout_s=_TIMEOUT_S
                )


def _spelled(url: str) -> str:
    try:
        return relay_visit.parse(url)
    except BadInput:  # longer than a stranger's may be, or with a query
        return ""


async def address_signer(address: str, wallet: Wallet, *, allow_private: bool) -> str:
    """The key that signs the receipts of the wallet's own lightning address; empty where it has none.

    Raises:
        BadConfig: the address is none, takes no zaps or does not answer; or the wallet cannot look payments up.

    """
    if not address:
        return ""
    if "lookup-in" not in (await wallet.info()).abilities:
        raise BadConfig("lnurl.address", "the wallet cannot look incoming payments up: a receipt alone proves nothing")
    try:
        offer = await lnurl.fetch_offer(lnurl.pay_url(address), allow_private=allow_private)
    except NodewireError as error:
        raise BadConfig("lnurl.address", f"{address}: {error}") from error
    return offer.zapper()


async def follow_address(pool: Pool, till: Till, public: str, signer: str, on_settled: Callable[[Due], None]) -> None:
    """Take the receipts of the wallet's own address as they come, and those of the last week.

    Each names a payment that the wallet is asked for. Without a `signer` there are none.

    A wallet whose record is behind its service's receipt is asked again, after growing pauses.
    """
    if not signer:
        return
    since_s = int(time.time()) - KEPT_S
    wanted = Filter(
        kinds=frozenset({nip57.RECEIPT}), authors=frozenset({signer}), tags={"p": frozenset({public})}, since=since_s
    )
    turns = asyncio.Semaphore(_RECEIPTS_AT_ONCE)

    async def book(event: Event) -> None:
        for pause_s in (*_PAUSES_S, None):
            try:
                async with turns:
                    settled = await till.take_receipt(event, signer)
            except (NotFound, LinkLost, TimedOut) as error:
                if pause_s is None:
                    log.warning("a receipt of the wallet's address does not count: %s", ascii(str(error)))
                else:
                    await asyncio.sleep(pause_s)
            except NodewireError as error:
                log.info("a receipt of the wallet's address does not count: %s", ascii(str(error)))
                return
            else:
                for due in settled:
                    on_settled(due)
                return

    async with asyncio.TaskGroup() as group:
        async for event in pool.subscribe([wanted]):
            group.create_task(book(event))
