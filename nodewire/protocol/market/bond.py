"""A bond statement (kind 8858): a holder says that it holds a provider's bond, until when.

It counts for a committee that lists the holder. The provider's ad names it by id; the snapshot carries it.

Event: `p` = provider, `amount` = msat, `expiration` = unix seconds; content empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.BOND
_MOST_MSAT = 2_100_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class BondStatement:
    """`holder` (the author) holds `amount_msat` of `provider` until `expires_at_s`."""

    holder: str
    provider: str
    amount_msat: int
    expires_at_s: int


def build(keys: Keys, provider: str, amount_msat: int, *, expires_at_s: int, created_at: int) -> Event:
    tags_ = [("p", provider), ("amount", str(amount_msat)), ("expiration", str(expires_at_s))]
    return sign(keys, KIND, created_at=created_at, tags=tags_)


def parse(event: Event) -> BondStatement:
    """The statement in a verified event. Raises BadEvent or BadTag."""
    tags.check_kind(event, KIND)
    amount_msat = tags.number("amount", tags.text(event, "amount"), _MOST_MSAT)
    expires_at_s = tags.number("expiration", tags.text(event, "expiration"), 2**53 - 1)
    return BondStatement(event.pubkey, tags.hex32(event, "p"), amount_msat, expires_at_s)
