"""What a provider trains with, whatever the layout of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class TrainerNode:
    """A trainer's key, its relays and blob servers, its book, and for how long it waits to be paid."""

    keys: Keys
    pool: Pool
    blobs: Blobs
    ledger: Ledger
    patience_s: float
