"""NIP-61: nutzaps (9321), which are ecash that only the recipient can spend, and what a recipient takes (10019).

https://github.com/nostr-protocol/nips/blob/master/61.md, with locks as NUT-10 and NUT-11 have them.

A nutzap is its own receipt: its proofs were the recipient's from the moment that the mint signed them. Nobody gets them
back. Every clause that does not hold raises BadZap with a field of its own. Only what the event itself says is checked
here. What needs the mint's keys, as the proofs' DLEQ, is checked by whoever has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadZap
from nodewire.nostr.event import Event, Tags, sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.keys import Keys

INFO = 10_019
NUTZAP = 9_321
UNIT = "sat"
MAX_MINTS = 32
MAX_UNITS = 16
MAX_RELAYS = 32
MAX_PROOFS = 32
MAX_PROOF_CHARS = 2_048
MAX_SECRET_CHARS = 512
MAX_NONCE_CHARS = 128
MAX_URL_CHARS = 256
MAX_COMMENT_CHARS = 1_024
MOST_SAT = 10**11
"""A nutzap has 1,000 BTC at most, as an invoice. Ledgers count in msat of 63 bits, and a mint can sign any number."""
_HEX64 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_FREE_TAGS: tuple[object, ...] = ([], [["sigflag", "SIG_INPUTS"]])
"""The tags of a lock that has no conditions but its key."""


@dataclass(frozen=True, slots=True)
class NutzapInfo:
    """A checked 10019: where its author reads nutzaps, at which mints, and the key that locks them."""

    author: str
    relays: tuple[str, ...]
    mints: tuple[tuple[str, tuple[str, ...]], ...]
    """Each mint's URL with the units that are taken there. No unit at all means any."""
    pubkey: str
    """64 hex digits; never the author's own key."""

    def takes(self, mint: str, unit: str = UNIT) -> bool:
        """Whether it takes ecash of this unit from the mint of this very URL."""
        return any(url == mint and (not units or unit in units) for url, units in self.mints)


@dataclass(frozen=True, slots=True)
class LockedProof:
    """One proof of a nutzap. `text` is its JSON, `pubkey` the one key (64 hex digits) that spends it."""

    text: str
    amount_sat: int
    secret: str
    pubkey: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Nutzap:
    """What a checked 9321 says. Pubkeys and ids are 64 hex digits; the unit is the satoshi."""

    id: str
    sender: str
    recipient: str
    mint: str
    proofs: tuple[LockedProof, ...]
    event: str | None
    """The nutzapped event's id."""
    content: str
    tags: Tags

    @property
    def amount_sat(self) -> int:
        """Of all proofs, before the mint's fee for them."""
        return sum(one.amount_sat for one in self.proofs)

    def value(self, name: str) -> str | None:
        """The first value of the first tag called `name`."""
        return next((tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name), None)


# What a recipient takes


def build_info(
    keys: Keys, *, relays: Iterable[str], mints: Iterable[Sequence[str]], pubkey: str, created_at: int
) -> Event:
    """The event by which `keys` take nutzaps. `mints`: each a URL and its units.

    Raises:
        BadZap: a clause does not hold.

    """
    tags = [["relay", url] for url in relays] + [["mint", *mint] for mint in mints] + [["pubkey", pubkey]]
    event = sign(keys, INFO, created_at=created_at, tags=tags)
    parse_info(event)
    return event


def parse_info(event: Event) -> NutzapInfo:
    """What a verified event says.

    Raises:
        BadZap: `kind`, `relay`, `mint` or `pubkey` breaks its clause.

    """
    if event.kind != INFO:
        raise BadZap("kind", f"{event.kind} instead of {INFO}")
    relays, keys = event.values("relay"), event.values("pubkey")
    mints = [tag[1:] for tag in event.tags if tag[0] == "mint"]
    if len(relays) > MAX_RELAYS or any(len(url) > MAX_URL_CHARS for url in relays):
        raise BadZap("relay", f"over {MAX_RELAYS}, or a URL over {MAX_URL_CHARS} characters")
    if not 0 < len(mints) <= MAX_MINTS:
        raise BadZap("mint", f"{len(mints)} mints, not 1 to {MAX_MINTS}")
    if any(not 1 <= len(mint) <= 1 + MAX_UNITS or any(len(text) > MAX_URL_CHARS for text in mint) for mint in mints):
        raise BadZap("mint", "one names no URL, or too much")
    if len(keys) != 1:
        raise BadZap("pubkey", "not exactly one key")
    pubkey = keys[0][2:] if len(keys[0]) == 66 and keys[0].startswith("02") else keys[0]
    if not _HEX64.match(pubkey) or pubkey == event.pubkey:
        raise BadZap("pubkey", "no public key, or the author's own")
    return NutzapInfo(event.pubkey, tuple(relays), tuple((mint[0], tuple(mint[1:])) for mint in mints), pubkey)


# Nutzaps


def build(
    keys: Keys,
    info: NutzapInfo,
    mint: str,
    proofs: Iterable[str],
    *,
    created_at: int,
    content: str = "",
    event: str | None = None,
    others: Iterable[Sequence[str]] = (),
) -> Event:
    """A nutzap of `proofs` (each as JSON) at `mint` to the author of `info`. It passes `check` or is not built.

    Raises:
        BadZap: a clause does not hold.

    """
    tags: list[Sequence[str]] = [["proof", text] for text in proofs]
    tags += [["u", mint], ["unit", UNIT], ["p", info.author]]
    tags += [["e", event]] if event is not None else []
    made = sign(keys, NUTZAP, created_at=created_at, content=content, tags=[*tags, *others])
    check(parse(made), info)
    return made


def parse(event: Event) -> Nutzap:
    """What a verified event says, by every clause that needs nothing else.

    Raises:
        BadZap: `kind`, `content`, `p`, `u`, `unit`, `e` or `proof` breaks its clause.

    """
    if event.kind != NUTZAP:
        raise BadZap("kind", f"{event.kind} instead of {NUTZAP}")
    if len(event.content) > MAX_COMMENT_CHARS:
        raise BadZap("content", f"{len(event.content)} characters, at most {MAX_COMMENT_CHARS}")
    recipients, mints, units, events = (event.values(name) for name in ("p", "u", "unit", "e"))
    if len(recipients) != 1 or not _HEX64.match(recipients[0]):
        raise BadZap("p", "not exactly one public key")
    if len(mints) != 1 or not 0 < len(mints[0]) <= MAX_URL_CHARS:
        raise BadZap("u", "not exactly one mint")
    if units not in ([], [UNIT]):
        raise BadZap("unit", f"not {UNIT}")
    if len(events) > 1 or not all(_HEX64.match(value) for value in events):
        raise BadZap("e", "not at most one event id")
    texts = event.values("proof")
    if not 0 < len(texts) <= MAX_PROOFS:
        raise BadZap("proof", f"{len(texts)} proofs, not 1 to {MAX_PROOFS}")
    proofs = tuple(_proof(text) for text in texts)
    if len({one.secret for one in proofs}) < len(proofs):
        raise BadZap("proof", "one is there twice")
    if sum(one.amount_sat for one in proofs) > MOST_SAT:
        raise BadZap("proof", "more than there is")
    return Nutzap(
        id=event.id,
        sender=event.pubkey,
        recipient=recipients[0],
        mint=mints[0],
        proofs=proofs,
        event=events[0] if events else None,
        content=event.content,
        tags=event.tags,
    )


def check(nutzap: Nutzap, info: NutzapInfo) -> None:
    """Check that a nutzap is one that the author of `info` takes.

    Raises:
        BadZap: `p`, `u` or `proof`: it is for another, of a mint that is not listed, or locked to another key.

    """
    if nutzap.recipient != info.author:
        raise BadZap("p", "the nutzap is for somebody else")
    if not info.takes(nutzap.mint):
        raise BadZap("u", "of a mint, or a unit of it, that the recipient does not list")
    if any(one.pubkey != info.pubkey for one in nutzap.proofs):
        raise BadZap("proof", "locked to another key than the recipient's")


def _proof(text: str) -> LockedProof:
    """A proof whose lock is one key and nothing else. Raises BadZap, which shows no secret."""
    if len(text) > MAX_PROOF_CHARS:
        raise BadZap("proof", f"{len(text)} characters, at most {MAX_PROOF_CHARS}")
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadZap("proof", "not JSON") from error
    amount_sat, secret = (said.get("amount"), said.get("secret")) if isinstance(said, dict) else (None, None)
    if type(amount_sat) is not int or not 0 < amount_sat <= MOST_SAT:
        raise BadZap("proof", "it has no amount")
    if not isinstance(secret, str) or len(secret) > MAX_SECRET_CHARS:
        raise BadZap("proof", f"its secret is no text of at most {MAX_SECRET_CHARS} characters")
    pubkey, nonce = _lock(secret)
    return LockedProof(text, amount_sat, secret, pubkey, nonce)


def _lock(secret: str) -> tuple[str, str]:
    """The one key that a secret is locked to, and its nonce. Raises BadZap: it has no such lock, or further ones."""
    try:
        kind, said = orjson.loads(secret)
        nonce, data, tags = said["nonce"], said["data"], said.get("tags", [])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadZap("proof", "its secret has no lock") from error
    if kind != "P2PK" or set(said) - {"nonce", "data", "tags"} or tags not in _FREE_TAGS:
        raise BadZap("proof", "its lock has other conditions than one key")
    if not (isinstance(nonce, str) and 0 < len(nonce) <= MAX_NONCE_CHARS):
        raise BadZap("proof", f"its nonce is no text of at most {MAX_NONCE_CHARS} characters")
    if not (isinstance(data, str) and data.startswith("02") and _HEX64.match(data[2:])):
        raise BadZap("proof", "its lock names no key, or one without the prefix 02")
    return data[2:], nonce
