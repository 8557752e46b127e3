"""Ordinary zaps of a customer: to a provider (a deposit), to anybody, or to an event and those that it names."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadInput, NotFound
from nodewire.nostr.nips import nip19
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.nostr.nips.nip19 import Naddr
from nodewire.nostr.nips.nip57 import Share
from nodewire.pay.accounts.splits import SplitZap, shares_of
from nodewire.pay.lightning import lnurl
from nodewire.protocol.market import ad

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.event import Event
    from nodewire.nostr.event_transport import EventTransport

PROFILE = 0
_PREFIXES = ("note1", "nevent1", "naddr1")
_FETCH_S = 10.0


def names_event(text: str) -> bool:
    """Whether a text is meant as an event's, in bech32 (NIP-19)."""
    return text.removeprefix("nostr:").startswith(_PREFIXES)


async def of_event(
    pool: EventTransport, text: str, amount_msat: int, relays: tuple[str, ...], *, comment: str = "", name: str = ""
) -> SplitZap:
    """The zap of the event that `text` (note, nevent or naddr) names, split as the event wants it.

    Raises:
        BadInput: the text, or the event's `zap` tags, are malformed.
        NotFound: no relay has the event.

    """
    named = nip19.parse(text)
    if isinstance(named, Naddr):
        kinds, authors = frozenset({named.kind}), frozenset({named.pubkey})
        wanted = Filter(kinds=kinds, authors=authors, tags={"d": frozenset({named.d})} if named.d else {})
        address: str | None = f"{named.kind}:{named.pubkey}:{named.d}"
    else:
        wanted, address = Filter(ids=frozenset({named.id})), None
    found = await pool.fetch([wanted], timeout_s=_FETCH_S)
    if not found:
        raise NotFound("event", "no relay of yours has it")
    event = min(found, key=newest_first)
    return SplitZap(_name(name), shares_of(event, amount_msat), relays, event.id, address, comment)


def of_key(pubkey: str, amount_msat: int, relays: tuple[str, ...], *, comment: str = "", name: str = "") -> SplitZap:
    """The zap of a public key: its profile, as NIP-57 has it."""
    return SplitZap(_name(name), (Share(pubkey, "", amount_msat),), relays, comment=comment)


async def endpoint_of(pool: EventTransport, pubkey: str) -> str:
    """The LNURL-pay URL at which a public key is paid: of its ad if it is a provider, else of its profile.

    Raises:
        NotFound: it names none on these relays.
        BadInput: what its profile names is none.

    """
    kinds = frozenset({ad.KIND, PROFILE})
    events = sorted(
        await pool.fetch([Filter(kinds=kinds, authors=frozenset({pubkey}))], timeout_s=_FETCH_S), key=newest_first
    )
    for url in (*_of_ads(events), *_of_profiles(events)):
        return lnurl.pay_url(url)
    raise NotFound("lud16", f"neither an ad nor a profile of {pubkey[:8]} on your relays says where it is paid")


def _of_ads(events: Iterable[Event]) -> Iterable[str]:
    for event in events:
        if event.kind == ad.KIND:
            try:
                url = ad.parse(event).lnurl
            except BadInput:
                continue
            if url:
                yield url


def _of_profiles(events: Iterable[Event]) -> Iterable[str]:
    for event in events:
        if event.kind == PROFILE:
            try:
                said = orjson.loads(event.content)
            except orjson.JSONDecodeError:
                continue
            if isinstance(said, dict):
                yield from (
                    said[field] for field in ("lud16", "lud06") if isinstance(said.get(field), str) and said[field]
                )


def _name(name: str) -> str:
    """Raises BadInput."""
    if name and (len(name) != 64 or not set(name) <= set("0123456789abcdef")):
        raise BadInput("again", "not the 64 hex digits by which an earlier zap was named")
    return name or secrets.token_hex(32)
