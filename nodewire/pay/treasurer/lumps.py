"""The ledger and the till of a treasury: all that anybody zaps it is paid ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till

if TYPE_CHECKING:
    from nodewire.nostr.nips.nip57 import ZapRequest


MAX_NEW = 10_000
"""Unpaid invoices of keys that have not paid yet. Each customer is one before its first lump."""


class LumpLedger(Ledger):
    """Nothing is ever due here, so a key's balance is all that it has paid."""

    def is_customer(self, key: str) -> bool:
        return self.deposit_msat(key) > 0

    def is_depositor(self, key: str) -> bool:
        return True


class LumpTill(Till):
    """A zap request may name a chunk, as any that pays a debt does. Here it is a lump of its author all the same."""

    @property
    def most_of_strangers(self) -> int:
        return MAX_NEW

    def is_for_chunk(self, request: ZapRequest) -> bool:
        return False
