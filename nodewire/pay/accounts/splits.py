"""One zap to several (NIP-57 appendix G): a share each, by the weights of what is zapped, exact to the millisat.

Each share is a payment of its own in the payer's ledger, under the zap's name. So one that fails loses no other, and
the same zap again pays what is left of it and nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError
from nodewire.nostr.nips import nip57
from nodewire.nostr.nips.nip57 import Share, ZapTarget
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.pay.accounts.payer import Payer, ZapTerms
from nodewire.pay.lightning import lnurl

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

_AT_ONCE = 8
Where = Callable[[str], Awaitable[str]]
"""The LNURL-pay URL of a public key. Raises a typed error: it has none."""


@dataclass(frozen=True, slots=True)
class SplitZap:
    """`name` (64 hex digits) tells it from other zaps of the same.

    `event` or `address` is what is zapped, if anything but the receivers; `relays` are where receipts go.
    """

    name: str
    shares: tuple[Share, ...]
    relays: tuple[str, ...]
    event: str | None = None
    address: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ShareOutcome:
    """What became of a share: paid, or why not."""

    share: Share
    paid: Debt | None
    error: NodewireError | None


def shares_of(event: Event, amount_msat: int) -> tuple[Share, ...]:
    """The shares of a zap of an event.

    By its `zap` tags, one for each key, or all of it for the author where it has none. They sum to `amount_msat`.

    Raises:
        BadZap: its `zap` tags are malformed.
        BadInput: the amount is out of range.


    """
    return merged(nip57.split(event.tags, amount_msat) or [Share(event.pubkey, "", amount_msat)])


def merged(shares: Iterable[Share]) -> tuple[Share, ...]:
    """One share for each key, the sum of its shares."""
    found: dict[str, Share] = {}
    for one in shares:
        known = found.get(one.pubkey)
        found[one.pubkey] = (
            one if known is None else Share(one.pubkey, known.relay, known.amount_msat + one.amount_msat)
        )
    return tuple(one for one in found.values() if one.amount_msat)


async def pay(payer: Payer, zap: SplitZap, where: Where, *, network: str, allow_private: bool) -> list[ShareOutcome]:
    """Pay each share of a zap that is not paid yet, to where its key is paid. The same zap again pays the rest.

    Raises:
        BadInput: two shares are of one key, or the name is none.

    """
    if len({one.pubkey for one in zap.shares}) < len(zap.shares) or len(zap.name) != 64:
        raise BadInput("zap", "a name of 64 hex digits, and one share for each key, are needed")
    payer.close(zap.name)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def send(share: Share) -> ShareOutcome:
        try:
            async with turns:
                url = await where(share.pubkey)
                fetch = lnurl.over_lnurl(url, nostr_pubkey=None, network=network, allow_private=allow_private)
                key = Key(zap.name, share.pubkey, 0)
                build = _request(zap, lnurl.encode(url))
                # A gift is no debt: what was paid ahead for work does not settle it, nor does a later lump pay it.
                terms = ZapTerms(alone=True, by_name=True, build=build)
                paid = await payer.pay(key, share.amount_msat, fetch, relays=zap.relays, terms=terms)
        except NodewireError as error:
            return ShareOutcome(share, None, error)
        return ShareOutcome(share, paid, None)

    return list(await asyncio.gather(*map(send, zap.shares)))


def _request(zap: SplitZap, endpoint: str) -> Callable[..., Event]:
    """Signs an ordinary zap request, which names no chunk."""

    def build(
        keys: Keys, key: Key, amount_msat: int, *, relays: Sequence[str], lnurl: str | None, created_at: int
    ) -> Event:
        target = ZapTarget(key.payee, lnurl=endpoint, event=zap.event, address=zap.address)
        return nip57.build_request(
            keys, target, amount_msat=amount_msat, relays=relays, created_at=created_at, content=zap.comment
        )

    return build
