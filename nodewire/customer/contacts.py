"""Whom a customer means: keys, and lists of keys that somebody has published (NIP-51)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NotFound, TooLarge
from nodewire.nostr.keys import from_npub
from nodewire.nostr.nips import nip19
from nodewire.nostr.nips.nip01 import Filter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.event_transport import EventTransport

FOLLOW_SET = 30_000
"""NIP-51: people, in public `p` tags, under a name of the author's."""
MAX_PEOPLE = 64


async def people(relays: EventTransport, named: Iterable[str], field: str) -> tuple[str, ...]:
    """The public keys that are named by an npub, 64 hex digits, or a follow set: an naddr, or 30000:AUTHOR:NAME.

    Of a list that its author has encrypted nothing is read. Errors name `field`.

    Raises:
        BadInput: a text is none of these.
        NotFound: the relays have no such list.
        TooLarge: they are more than 64 together.
        TimedOut, RelayRefused: as `EventTransport.fetch`.

    """
    found: dict[str, None] = {}
    for text in named:
        listed = _follow_set(text, field)
        keys = await _members(relays, listed, text, field) if listed is not None else (_key(text, field),)
        found |= dict.fromkeys(keys)
        if len(found) > MAX_PEOPLE:
            raise TooLarge(field, f"more than {MAX_PEOPLE} people")
    return tuple(found)


def _follow_set(text: str, field: str) -> tuple[str, str] | None:
    """Author and name of the list that `text` is the address of; None if it is none."""
    if text.startswith(f"{FOLLOW_SET}:"):
        _, author, name = text.split(":", 2) if text.count(":") > 1 else ("", "", "")
        return _key(author, field), name
    if not text.removeprefix("nostr:").startswith("naddr1"):
        return None
    try:
        entity = nip19.parse(text)
    except (BadInput, TooLarge) as error:
        raise BadInput(field, f"{text[:40]!r}... is no naddr: {error.reason}") from error
    if not isinstance(entity, nip19.Naddr) or entity.kind != FOLLOW_SET:
        raise BadInput(field, f"{text[:40]}... is not the address of a follow set (kind {FOLLOW_SET})")
    return entity.pubkey, entity.d


def _key(text: str, field: str) -> str:
    try:
        return from_npub(text)
    except BadInput as error:
        raise BadInput(field, f"{text[:80]!r} is no npub, 64 hex digits, naddr or {FOLLOW_SET}:AUTHOR:NAME") from error


async def _members(relays: EventTransport, listed: tuple[str, str], text: str, field: str) -> tuple[str, ...]:
    author, name = listed
    wanted = Filter(kinds=frozenset({FOLLOW_SET}), authors=frozenset({author}), tags={"d": frozenset({name})})
    newest = next(iter(await relays.fetch([wanted])), None)
    if newest is None:
        raise NotFound(field, f"no relay of this customer's has the list {text[:80]}")
    keys = tuple(tag[1] for tag in newest.tags if len(tag) > 1 and tag[0] == "p")
    if not keys:
        raise NotFound(field, f"the list {text[:80]} names nobody in public")
    return tuple(_key(key, field) for key in keys)
